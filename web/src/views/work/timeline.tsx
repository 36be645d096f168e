import { Link } from '@tanstack/react-router';
import { useState } from 'react';
import { type Attempt, isRun, type Task, type Work } from '../../api/client';
import { counted, grouped, moment, visible } from '../../model/format';
import { attemptState, parentOf, provenState, type State } from '../../model/work';
import { Chart } from '../../parts/chart';
import { Button, Choices } from '../../parts/controls';
import { useNow } from '../../parts/text';

const [LANE, TOP] = [30, 44];
const MOST = 60;
const TICKS = 6;
const TICK_WIDTH = 85;
const NOW_WIDTH = 44;
const NARROW = 560;
const [SECOND, MINUTE, HOUR, DAY] = [1000, 60_000, 3_600_000, 86_400_000];
/** The distances between ticks. */
const STEPS = [
  ...[1, 2, 5, 10, 15, 30].map((count) => count * SECOND),
  ...[1, 2, 5, 10, 15, 30].map((count) => count * MINUTE),
  ...[1, 2, 3, 6, 12].map((count) => count * HOUR),
  ...[1, 2, 7, 14, 30, 90, 365].map((count) => count * DAY),
];

/** Round times of the local clock within a span, at most so many. */
function ticksOf(begin: number, end: number, most: number): { step: number; at: number[] } {
  const step = STEPS.find((one) => (end - begin) / one <= most) ?? end - begin;
  const zone = new Date(begin).getTimezoneOffset() * MINUTE;
  const first = Math.ceil((begin - zone) / step) * step + zone;
  const count = Math.max(0, Math.floor((end - first) / step) + 1);
  return { step, at: Array.from({ length: count }, (_, tick) => first + tick * step) };
}

const wordsOf = (ms: number, step: number): string => {
  const at = new Date(ms);
  if (step >= DAY) return at.toLocaleDateString('en-GB', { day: 'numeric', month: 'short' });
  const second = step < MINUTE ? ('2-digit' as const) : undefined;
  return at.toLocaleTimeString('en-GB', { hour: '2-digit', minute: '2-digit', second });
};

/** The time span to show. */
const SPANS = { hour: HOUR, day: DAY, week: 7 * DAY, all: Number.POSITIVE_INFINITY };
type Span = keyof typeof SPANS;

interface Bar {
  from: number;
  to: number | null;
  look: string;
}

const LOOKS: Partial<Record<State, string>> = {
  ok: 'tl-ok', bad: 'tl-bad', lost: 'tl-lost', run: 'tl-go', you: 'tl-you',
}; // biome-ignore format: a table

function ofAttempt(task: Task, attempt: Attempt): Bar {
  // A rate limit is no failure of the work.
  const state = attempt.failure === 'rate_limit' ? 'limit' : attemptState(attempt, task);
  return {
    from: Date.parse(attempt.started_at),
    to: attempt.ended_at ? Date.parse(attempt.ended_at) : null,
    look: LOOKS[attempt.ended_at ? state : 'run'] ?? 'tl-cx',
  };
}

function barsOf(work: Work): Bar[] {
  if (!isRun(work)) return work.attempts.map((attempt) => ofAttempt(work, attempt));
  if (!work.started_at) return [];
  const to = work.ended_at ? Date.parse(work.ended_at) : null;
  return [{ from: Date.parse(work.started_at), to, look: LOOKS[provenState(work)] ?? 'tl-cx' }];
}

/** Runs, each followed by its own work, the latest first. */
function inOrder(work: Work[]): [Work, number][] {
  const ids = new Set(work.map((item) => item.id));
  const inside = Map.groupBy(work, (item) => parentOf(item) ?? '');
  const rows: [Work, number][] = [];
  const add = (item: Work, depth: number) => {
    rows.push([item, depth]);
    for (const child of (inside.get(item.id) ?? []).toReversed()) add(child, depth + 1);
  };
  for (const item of work.filter((other) => !ids.has(parentOf(other) ?? ''))) add(item, 0);
  return rows;
}

const cutTo = (text: string, most: number): string =>
  text.length > most ? `${text.slice(0, most - 1)}…` : text;

interface Props {
  /** The newest work, as much of it as is loaded. */
  work: Work[];
  /** Loads older work, where there is some. */
  more: (() => void) | null;
  hasMore: boolean;
  /** The number of tasks and runs that the filter matches, counted by the daemon. */
  total: number | undefined;
}

/** When each attempt was made. */
export function Timeline({ work, more, hasMore, total }: Props) {
  const now = useNow();
  const [span, choose] = useState<Span>('day');
  const sinceMs = now - SPANS[span];
  const seen = ({ to }: Bar) => to === null || to >= sinceMs;
  const [showsAll, showAll] = useState(false);
  const matching = inOrder(work).filter(([item]) => barsOf(item).some(seen));
  const rows = showsAll ? matching : matching.slice(0, MOST);
  // What began before the window is cut at its edge, so that one long task does not squeeze the others.
  // Rows that are not shown count too: nothing happened before the time that the title names.
  const begins = matching.flatMap(([item]) =>
    barsOf(item)
      .filter(seen)
      .map((bar) => Math.max(bar.from, sinceMs)),
  );
  const first = begins.reduce((earliest, time) => Math.min(earliest, time), now - MINUTE);
  const begin = hasMore && Number.isFinite(sinceMs) ? sinceMs : first;
  const height = TOP + rows.length * LANE + 12;
  const since = moment(new Date(begin).toISOString());
  const draw = (width: number) => {
    const left = width < NARROW ? 112 : 240;
    const most = Math.min(TICKS, Math.max(1, Math.floor((width - left - 16) / TICK_WIDTH)));
    const { step, at } = ticksOf(begin, now, most);
    const x = (time: number) => left + ((width - left - 16) * (time - begin)) / (now - begin);
    return (
      <>
        {at.map((tick) => (
          <g key={tick}>
            <line className="grid" x1={x(tick)} x2={x(tick)} y1={28} y2={height} />
            {x(now) - x(tick) > NOW_WIDTH && (
              <text x={x(tick)} y={18} textAnchor="middle">
                {wordsOf(tick, step)}
              </text>
            )}
          </g>
        ))}
        <line className="nowl" x1={x(now)} x2={x(now)} y1={28} y2={height} />
        <text className="strongt" x={x(now) + 16} y={18} textAnchor="end">
          now
        </text>
        {rows.map(([item, depth], row) => (
          <Link
            key={item.id}
            to={isRun(item) ? '/runs/$id/{-$tab}' : '/tasks/$id/{-$tab}'}
            params={{ id: item.id }}
          >
            <text className="lane" x={4 + depth * 18} y={TOP + row * LANE + 12}>
              {cutTo(visible(item.title), left / 8 - depth * 3)}
            </text>
            {barsOf(item)
              .filter(seen)
              .map((bar) => (
                <rect
                  key={bar.from}
                  className={bar.look}
                  x={x(Math.max(bar.from, begin))}
                  y={TOP + row * LANE}
                  width={Math.max(3, x(bar.to ?? now) - x(Math.max(bar.from, begin)))}
                  height={16}
                  rx={3}
                />
              ))}
          </Link>
        ))}
      </>
    );
  };
  const looks = {
    'tl-ok': 'verified',
    'tl-bad': 'failed',
    'tl-go': 'running',
    'tl-you': 'needs you, or a question',
    'tl-lost': 'lost',
    'tl-cx': 'not verified, limited or cancelled',
  };
  const legend = (
    <span className="legend end">
      {Object.entries(looks).map(([look, words]) => (
        <span key={look}>
          <svg className="key chart" viewBox="0 0 12 12" aria-hidden="true">
            <rect className={look} x="1" y="1" width="10" height="10" rx="2" />
          </svg>
          {words}
        </span>
      ))}
    </span>
  );
  return (
    <>
      <div className="tbar">
        <Choices
          label="Time"
          value={span}
          choose={choose}
          of={[
            { value: 'hour', label: '1 hour' },
            { value: 'day', label: '24 hours' },
            { value: 'week', label: '7 days' },
            { value: 'all', label: 'All' },
          ]}
        />
        <output className="faint small">
          {grouped(rows.length)} of {counted(matching.length, 'row')}
          {hasMore &&
            total !== undefined &&
            `, from the newest ${grouped(work.length)} of ${counted(total, 'item')}`}
        </output>
        {rows.length < matching.length && (
          <Button small onClick={() => showAll(true)}>
            Show all {grouped(matching.length)}
          </Button>
        )}
        {hasMore && (
          <Button small disabled={!more} onClick={() => more?.()}>
            Load older work
          </Button>
        )}
      </div>
      <Chart
        title={`Attempts since ${since}`}
        label={`Attempts of ${rows.length} tasks and runs since ${since}`}
        legend={legend}
        height={height}
        links
      >
        {draw}
      </Chart>
    </>
  );
}
