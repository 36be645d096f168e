import { useMemo } from 'react';
import type { Run } from '../../api/client';
import { useInside } from '../../api/queries';
import { counted } from '../../model/format';
import { provenState, type State } from '../../model/work';

const LOOKS: Partial<Record<State, string>> = {
  ok: 'ok', run: 'go', you: 'you', idle: 'you', bad: 'bad', lost: 'bad', queued: 'todo', blocked: 'todo', limit: 'todo', paused: 'todo',
}; // biome-ignore format: a table
const MOST = 16;

/** The parts of an active run, a bar for each in the order in which they started. */
export function Roll({ run }: { run: Run }) {
  const ids = useMemo(() => [run.id], [run.id]);
  const parts = (useInside(ids).get(run.id) ?? []).map(provenState);
  if (parts.length === 0) return null;
  const done = parts.filter((state) => LOOKS[state] === 'ok' || state === 'said').length;
  return (
    <span className="roll" role="img" aria-label={`${done} of ${counted(parts.length, 'part')} done`}>
      {parts.slice(-MOST).map((state, place) => (
        <i key={place} className={LOOKS[state]} />
      ))}
    </span>
  );
}
