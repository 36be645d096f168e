import { useEffect, useReducer, useState } from 'react';
import { follow } from './sse';

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

const address = (id: string) => `/api/v1/tasks/${id}/transcript?follow=true`;
const lineOf = (event: { id: string; kind: string; data: unknown }): Line => ({
  ...(event.data as object),
  place: event.id,
  kind: event.kind,
});

interface Transcript {
  lines: Line[];
  done: boolean;
}

type Change = { add: Line[]; anew: boolean } | 'begun' | 'done';

function changed(state: Transcript, change: Change): Transcript {
  if (change === 'begun') return { ...state, done: false };
  if (change === 'done') return { ...state, done: true };
  return { ...state, lines: change.anew ? change.add : [...state.lines, ...change.add] };
}

/** All that was said and done in a task, as it comes; read again when a task that had ended goes on. */
export function useTranscript(id: string, active: boolean): Transcript {
  const [state, change] = useReducer(changed, { lines: [], done: false });
  const [reading, read] = useState(0);
  useEffect(() => {
    if (state.done && active) read((before) => before + 1);
  }, [state.done, active]);
  useEffect(() => {
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
      for await (const event of follow(address(id), wakes)) {
        if (batch.push(lineOf(event)) === 1) requestAnimationFrame(flush);
      }
      flush();
      if (!ending.signal.aborted) change('done');
    };
    change('begun');
    begin();
    return () => ending.abort();
  }, [id, reading]);
  return state;
}
