import { useEffect, useReducer, useRef, useState } from 'react';
import { events, follow, type StreamEvent } from './sse';

/** One thing that an agent said or did, or that was done about it. */
export interface Line {
  place: string;
  kind: string;
  text?: string;
  name?: string;
  at?: string;
  data?: Record<string, unknown>;
  number?: number;
  agent?: string;
  after?: string | null;
}

/** So many lines of output are read at first, and with each step back; to get somewhere, more at once. */
const [SOME, MANY] = [300, 5000];

const address = (id: string, query: string) => `/api/v1/tasks/${id}/transcript?${query}`;
const lineOf = (event: StreamEvent): Line => ({
  ...(event.data as object),
  place: event.id,
  kind: event.kind,
});

interface Held {
  lines: Line[];
  done: boolean;
  /** Whether something may come before the first line. */
  more: boolean;
}

/** Whether a line is the beginning of the first attempt. */
const isFirst = (line: Line | undefined): boolean => line?.place.startsWith('1:0:0:') ?? false;

type Change = { add: Line[]; anew: boolean } | { before: Line[] } | 'begun' | 'done';

function changed(held: Held, change: Change): Held {
  if (change === 'begun') return { ...held, done: false };
  if (change === 'done') return { ...held, done: true };
  if ('add' in change)
    return change.anew
      ? { ...held, lines: change.add, more: !isFirst(change.add[0]) }
      : { ...held, lines: [...held.lines, ...change.add] };
  const [first] = change.before;
  if (!first) return { ...held, more: false };
  // Each part begins with the attempt that it is of.
  const same = held.lines[0]?.number === first.number;
  const lines = [...change.before, ...held.lines.slice(same ? 1 : 0)];
  return { ...held, lines, more: !isFirst(first) };
}

/** What a stream of a transcript tells, a frame's worth at a time; read again when a task that had ended goes on. */
function useStream(url: string | null, active: boolean): [Held, (before: Line[]) => void] {
  const [held, change] = useReducer(changed, { lines: [], done: false, more: false });
  const [reading, read] = useState(0);
  useEffect(() => {
    if (held.done && active) read((before) => before + 1);
  }, [held.done, active]);
  useEffect(() => {
    if (!url) return;
    const ending = new AbortController();
    let batch: Line[] = [];
    let anew = true;
    const flush = () => {
      if (ending.signal.aborted || batch.length === 0) return;
      change({ add: batch, anew });
      batch = [];
      anew = false;
    };
    const begin = async () => {
      const wakes = { signal: ending.signal, opened: () => undefined, lost: () => undefined };
      for await (const event of follow(url, wakes)) {
        if (batch.push(lineOf(event)) === 1) requestAnimationFrame(flush);
      }
      flush();
      if (!ending.signal.aborted) change('done');
    };
    change('begun');
    begin();
    return () => ending.abort();
  }, [url, reading]);
  return [held, (before) => change({ before })];
}

interface Transcript extends Held {
  /** Read what comes before the first line. */
  earlier: () => Promise<void>;
  /** Read backwards until the line at a place is there. */
  reach: (place: string) => Promise<void>;
}

/** What was said and done in a task: its end, then what comes, and backwards as far as one asks for. */
export function useTranscript(id: string, active: boolean): Transcript {
  const [held, put] = useStream(address(id, `follow=true&tail=${SOME}`), active);
  const reading = useRef<Promise<void> | null>(null);
  const back = async (limit: number, until?: string) => {
    let first = held.lines[0]?.place;
    while (first) {
      const before = await readBefore(id, first, limit);
      put(before);
      first = before[0]?.place;
      if (!until || before.some(({ place }) => place === until)) return;
    }
  };
  const once = (limit: number, until?: string) => {
    reading.current ??= back(limit, until).finally(() => {
      reading.current = null;
    });
    return reading.current;
  };
  return {
    ...held,
    earlier: () => once(SOME),
    reach: async (place) => {
      if (!held.lines.some((line) => line.place === place)) await once(MANY, place);
    },
  };
}

async function readBefore(id: string, place: string, limit: number): Promise<Line[]> {
  const lines: Line[] = [];
  const url = address(id, `before=${place}&limit=${limit}`);
  for await (const event of events(url, new AbortController().signal)) {
    if (event && event.kind !== 'end') lines.push(lineOf(event));
  }
  return lines;
}

/** What one would go to in a transcript, all of it, in short. */
export const useOutline = (id: string, active: boolean, wanted: boolean): Held =>
  useStream(wanted ? address(id, 'follow=true&outline=true') : null, active)[0];
