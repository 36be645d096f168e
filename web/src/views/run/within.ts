import type { Run } from '../../api/client';
import { hasEnded, type State } from '../../model/work';

const MOVING = new Set<State>(['run', 'you', 'idle', 'limit', 'queued', 'paused']);
const TO_COME = new Set<State>(['todo', 'blocked']);

/** The state to show for a part of a run. The state of the run takes precedence: in a run that has ended,
 * waits or is paused nothing moves, and in an ended run nothing is still to come. */
export function within(run: Run, state: State): State {
  if (hasEnded(run)) {
    if (MOVING.has(state)) return 'cancelled';
    return TO_COME.has(state) ? 'none' : state;
  }
  if (state !== 'run' || run.status === 'running') return state;
  if (run.status === 'waiting') return 'you';
  return run.status === 'paused' ? 'paused' : 'queued';
}

const WORDS: Partial<Record<State, string>> = {
  run: 'at work',
  you: 'needs you',
  paused: 'paused',
  queued: 'queued',
  cancelled: 'stopped',
  todo: 'open',
  blocked: 'waiting',
  none: 'not done',
  merged: 'merged',
  said: 'done, not merged',
  bad: 'failed',
};

/** A state in words. */
export const wordsFor = (state: State): string => WORDS[state] ?? '';

/** The legend of the glyphs in a plan. */
export const meanings = (parts: { state: State }[]): Partial<Record<State, string>> =>
  Object.fromEntries(parts.map(({ state }) => [state, wordsFor(state)]));
