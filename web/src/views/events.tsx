import { useQuery, useQueryClient } from '@tanstack/react-query';
import { useEffect } from 'react';
import { type HistoryEvent, history } from '../api/history';
import { events, lastEvent } from '../api/sse';
import { shortId } from '../model/format';
import type { State } from '../model/work';
import { Empty, Loading, Problem } from '../parts/controls';
import { Glyph } from '../parts/glyph';
import { Moment, Said } from '../parts/text';
import { WorkId } from './work_link';

/** What has happened is past: nothing here moves or waits. */
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
  if (read.data.length === 0) return <Empty title="Nothing has happened yet" />;
  return (
    <ul className="nest panel happenings">
      {read.data.toReversed().map((event) => (
        <li key={event.seq}>
          <span className="faint mono">
            <Moment at={event.at} seconds />
          </span>
          <span className="t">
            <Glyph state={STATES[event.kind.split('.')[1] ?? ''] ?? 'todo'} label={wordsOf(event.kind)} />
            <span className="nowrap">{wordsOf(event.kind)}</span>
            <span className="faint cut">
              <Said>{about(event.data)}</Said>
            </span>
          </span>
          {subject(event) && subject(event) !== id && <WorkId id={subject(event) ?? ''} />}
        </li>
      ))}
    </ul>
  );
}

const subject = (event: HistoryEvent): string | null => event.task_id ?? event.run_id;

const TELLING = [
  'reason',
  'why',
  'name',
  'key',
  'paths',
  'path',
  'text',
  'agent',
  'question',
  'title',
  'phase',
];

const NOUNS: Record<string, string> = {
  account: 'An account',
  attempt: 'The attempt',
  check: 'A check',
  delivery: 'The delivery',
  learning: 'A learning',
  lock: 'A lock',
  note: 'A note',
  process: 'A process',
  project: 'A project',
  run: 'The run',
  schedule: 'The schedule',
  task: 'The task',
  template: 'A template',
};

/** What is not said by the noun, “was” and the event’s own word. */
const KINDS: Record<string, string> = {
  'account.paused': 'The account pauses',
  'attempt.diagnosed': 'Why it failed',
  'attempt.lost': 'Nobody saw the end of the attempt',
  'attempt.warning': 'A warning',
  'process.tampered': 'A process was tampered with',
  'run.pausing': 'The run is about to pause',
  'run.progress': 'The run goes on',
  'run.resumed': 'The run goes on',
  'run.stopping': 'The run is about to end',
  'run.waiting': 'The run asks you',
  'task.blocked': 'The task waits for another',
  'task.handed_in': 'The agent handed in',
  'task.reported': 'The agent reported',
  'task.said': 'Somebody said',
  'task.stopping': 'The task is about to end',
  'task.waiting': 'The task waits',
};
const ACTIVE = new Set(['failed', 'passed', 'started', 'running', 'queued', 'ended', 'changed']);

/** The kind of an event in words: “The task was completed”. */
function wordsOf(kind: string): string {
  const [noun = '', what = ''] = kind.split('.');
  const verb = what.replaceAll('_', ' ');
  const told =
    what === 'running' || what === 'queued' ? `is ${verb}` : ACTIVE.has(what) ? verb : `was ${verb}`;
  return KINDS[kind] ?? (NOUNS[noun] ? `${NOUNS[noun]} ${told}` : kind);
}

/** One line of what somebody wrote, without the signs of Markdown. */
const plain = (text: string): string =>
  text
    .replace(/```[a-z]*/g, ' ')
    .replace(/\*\*|`/g, '')
    .replace(/\b(?:task|run)_[0-9a-z]{26}\b/g, shortId)
    .replace(/\s+/g, ' ')
    .trim();

function about(data: Record<string, unknown>): string {
  const told = TELLING.map((key) => data[key]).map((value) =>
    Array.isArray(value) ? value.join(', ') : value,
  );
  return told
    .filter((value) => typeof value === 'string')
    .map(plain)
    .filter(Boolean)
    .join(', ');
}
