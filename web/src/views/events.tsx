import { useQuery, useQueryClient } from '@tanstack/react-query';
import { useEffect } from 'react';
import { type HistoryEvent, history } from '../api/history';
import { events, lastEvent } from '../api/sse';
import type { State } from '../model/work';
import { Empty, Loading, Problem } from '../parts/controls';
import { Glyph } from '../parts/glyph';
import { Moment, Said } from '../parts/text';
import { eventWords } from './event_words';
import { WorkId } from './work_link';

/** Past events show no moving glyphs. */
const STATES: Record<string, State> = {
  created: 'queued',
  queued: 'queued',
  passed: 'ok',
  completed: 'said',
  merged: 'merged',
  failed: 'bad',
  lost: 'lost',
  cancelled: 'cancelled',
  paused: 'paused',
  warning: 'idle',
};

const MOST = 500;
const BATCH_MS = 300;

interface Of {
  task_id?: string;
  run_id?: string;
}

/** The newest of the history of one task or run, or of all, as it grows. */
export function Events({ of }: { of: Of }) {
  const queries = useQueryClient();
  const id = of.task_id ?? of.run_id;
  const read = useQuery({
    queryKey: ['events', id ?? null],
    queryFn: async ({ signal, queryKey }) => {
      const found = queries.getQueryData<HistoryEvent[]>(queryKey) ?? [];
      const begin = id ? 0 : Math.max(0, (await lastEvent('/api/v1/events')) - MOST);
      const asked = { ...of, follow: 'false', after: String(found.at(-1)?.seq ?? begin) };
      const more: HistoryEvent[] = [];
      for await (const event of events(`/api/v1/events?${new URLSearchParams(asked)}`, signal)) {
        if (event) more.push(event.data as HistoryEvent);
      }
      return [...found, ...more].slice(-MOST);
    },
  });
  const { refetch } = read;
  useEffect(() => {
    let timer: ReturnType<typeof setTimeout> | undefined;
    const again = () => {
      timer = undefined;
      refetch();
    };
    const stop = history.onEvents((told) => {
      if (!id || told.some((event) => event.task_id === id || event.run_id === id))
        timer ??= setTimeout(again, BATCH_MS);
    });
    return () => {
      clearTimeout(timer);
      stop();
    };
  }, [id, refetch]);
  if (read.isPending) return <Loading />;
  if (read.error) return <Problem error={read.error} />;
  if (read.data.length === 0) return <Empty title="No events yet" />;
  return (
    <ul className="nest panel happenings">
      {read.data.toReversed().map((event) => (
        <li key={event.seq}>
          <span className="faint mono">
            <Moment at={event.at} seconds />
          </span>
          <span className="t">
            <Told event={event} named={subject(event) !== id} />
          </span>
          {subject(event) && subject(event) !== id && <WorkId id={subject(event) ?? ''} />}
        </li>
      ))}
    </ul>
  );
}

const subject = (event: HistoryEvent): string | null => event.task_id ?? event.run_id;

/** One event in words; among those of other work, with the title of what it is about. */
function Told({ event, named }: { event: HistoryEvent; named: boolean }) {
  const [what, about] = eventWords(event);
  const { title } = event.data;
  return (
    <>
      <Glyph state={STATES[event.kind.split('.')[1] ?? ''] ?? 'todo'} label="" />
      <span title={event.kind}>{what}</span>
      {named && typeof title === 'string' && <Said className="cut dim">{title}</Said>}
      <Said className="faint cut">{about}</Said>
    </>
  );
}
