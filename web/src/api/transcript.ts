import { useEffect, useReducer, useRef, useState } from 'react';
import type { PersonMessage } from './client';
import { events, follow, type StreamEvent } from './sse';

/** One thing that an agent said or did, or that was done about it. */
export interface Line {
  place: string;
  kind: string;
  text?: string;
  name?: string;
  /** When it came, if it came while the page was looking; what was there before has no time. */
  came?: number;
  data?: Record<string, unknown>;
  number?: number;
  agent?: string;
  after?: string | null;
  /** Of what a person said: what it is, when, whether an agent was at work, and what became of it. */
  id?: string;
  message?: PersonMessage['kind'];
  question?: string | null;
  at?: string;
  at_work?: boolean;
  state?: PersonMessage['state'];
}

/** So many lines of output are read at first, and with each step back; to get somewhere, more at once. */
const [SOME, MANY] = [300, 5000];

/** Lines that arrive within this time existed before. */
const BURST_MS = 1500;

const address = (id: string, query: string) => `/api/v1/tasks/${id}/transcript?${query}`;
const lineOf = (event: StreamEvent): Line => ({
  ...(event.data as object),
  place: event.id,
  kind: event.kind,
});

interface Held {
  lines: Line[];
  done: boolean;
  /** Tells whether there may be earlier lines. */
  more: boolean;
}

/** Tells whether a line begins the first attempt. */
const isFirst = (line: Line | undefined): boolean => line?.place.startsWith('1:0:0:') ?? false;

/** Tells whether a line is the first one of its attempt. */
export const beginsAttempt = (line: Line | undefined): boolean => /^\d+:0:0:/.test(line?.place ?? '');

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
  return { ...held, lines: joined(change.before, held.lines), more: !isFirst(first) };
}

/** Tells whether a line belongs to the head of a part: the attempt, and the messages before it. */
const isHead = (line: Line): boolean => line.kind === 'attempt' || (line.kind === 'person' && !line.at_work);

/** Each part begins with the attempt that it is of. */
function joined(before: Line[], lines: Line[]): Line[] {
  if (lines[0]?.number !== before[0]?.number) return [...before, ...lines];
  const begin = lines.findIndex((line) => !isHead(line));
  return begin < 0 ? before : [...before, ...lines.slice(begin)];
}

/** Reads what comes before a line. */
type Back = (first: Line) => Promise<Line[]>;

/** Lines and the attempts before them, until these are some lines in all: what is short is read at once. */
async function filled(lines: Line[], back: Back): Promise<Line[]> {
  let found = lines;
  while (found[0] && beginsAttempt(found[0]) && !isFirst(found[0]) && found.length < SOME) {
    const before = await back(found[0]);
    if (before.length === 0) break;
    found = joined(before, found);
  }
  return found;
}

/** The lines of a transcript stream, in batches of a frame; read again when an ended task continues. */
function useStream(url: string | null, active: boolean, back?: Back): [Held, (before: Line[]) => void] {
  const [held, change] = useReducer(changed, { lines: [], done: false, more: false });
  const [reading, readAgain] = useState(0);
  useEffect(() => {
    if (held.done && active) readAgain((before) => before + 1);
  }, [held.done, active]);
  useEffect(() => {
    if (!url) return;
    const ending = new AbortController();
    const batch: Line[] = [];
    const opened = Date.now();
    let anew = true;
    let filling: Promise<void> | undefined;
    const take = (lines: Line[]) => {
      if (!ending.signal.aborted && lines.length > 0) change({ add: lines, anew });
      anew = false;
    };
    const begin = async (lines: Line[]) => {
      take(back ? await filled(lines, back).catch(() => lines) : lines);
      take(batch.splice(0));
    };
    const flush = () => {
      if (ending.signal.aborted || (filling && anew)) return;
      if (anew && batch.length > 0) filling = begin(batch.splice(0));
      else take(batch.splice(0));
    };
    const read = async () => {
      const wakes = { signal: ending.signal, opened: () => undefined, lost: () => undefined };
      for await (const event of follow(url, wakes)) {
        const now = Date.now();
        const line = now - opened < BURST_MS ? lineOf(event) : { ...lineOf(event), came: now };
        if (batch.push(line) === 1) requestAnimationFrame(flush);
      }
      flush();
      await filling;
      if (!ending.signal.aborted) change('done');
    };
    change('begun');
    read();
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

/** The transcript of a task: its end, then new lines, and earlier lines on request. */
export function useTranscript(id: string, active: boolean): Transcript {
  const [held, put] = useStream(address(id, `follow=true&tail=${SOME}`), active, (first) =>
    readBefore(id, first.place, SOME),
  );
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

/** The outline of a whole transcript. */
export const useOutline = (id: string, active: boolean, wanted: boolean): Held =>
  useStream(wanted ? address(id, 'follow=true&outline=true') : null, active)[0];
