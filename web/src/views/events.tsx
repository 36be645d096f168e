import { useQuery } from '@tanstack/react-query';
import { useEffect } from 'react';
import { type HistoryEvent, history } from '../api/history';
import { events } from '../api/sse';
import type { State } from '../model/work';
import { Empty, Loading } from '../parts/controls';
import { Glyph } from '../parts/glyph';
import { Said } from '../parts/text';

const STATES: Record<string, State> = {
  created: 'queued',
  queued: 'queued',
  started: 'run',
  resumed: 'run',
  passed: 'ok',
  completed: 'said',
  merged: 'merged',
  failed: 'bad',
  lost: 'lost',
  cancelled: 'cancelled',
  waiting: 'you',
  paused: 'paused',
  warning: 'idle',
};

const MOST = 500;

/** The history of one task or run, as it grows. */
export function Events({ query }: { query: string }) {
  const read = useQuery({
    queryKey: ['events', query],
    queryFn: async ({ signal }) => {
      const found: HistoryEvent[] = [];
      for await (const event of events(`/api/v1/events?after=0&follow=false&${query}`, signal)) {
        if (event) found.push(event.data as HistoryEvent);
      }
      return found;
    },
  });
  const { refetch } = read;
  const id = query.split('=')[1];
  useEffect(
    () =>
      history.onEvents((told) => {
        if (told.some((event) => event.task_id === id || event.run_id === id)) refetch();
      }),
    [id, refetch],
  );
  if (read.isPending) return <Loading />;
  if (!read.data?.length) return <Empty title="Nothing has happened yet" />;
  return (
    <ul className="nest panel happenings">
      {read.data.slice(-MOST).map((event) => (
        <li key={event.seq}>
          <time className="faint mono" dateTime={event.at}>
            {new Date(event.at).toLocaleTimeString('en-GB')}
          </time>
          <span className="t">
            <Glyph state={STATES[event.kind.split('.')[1] ?? ''] ?? 'todo'} />
            <span>{event.kind}</span>
            <span className="faint cut">
              <Said>{about(event.data)}</Said>
            </span>
          </span>
        </li>
      ))}
    </ul>
  );
}

const TELLING = ['reason', 'name', 'text', 'agent', 'question', 'title', 'phase'];

function about(data: Record<string, unknown>): string {
  const told = TELLING.map((key) => data[key]).filter((value) => typeof value === 'string' && value);
  return told.join(', ');
}
