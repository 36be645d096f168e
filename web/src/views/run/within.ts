import type { Run } from '../../api/client';
import { hasEnded, type State } from '../../model/work';

const MOVING = new Set<State>(['run', 'you', 'idle', 'limit', 'queued', 'paused']);
const TO_COME = new Set<State>(['todo', 'blocked']);

/** What a sign inside a run may show. The run's own state goes first: in one that has ended, waits or
 * is paused nothing moves, and in an ended one nothing is still to come. */
export function within(run: Run, state: State): State {
  if (hasEnded(run)) return MOVING.has(state) ? 'cancelled' : TO_COME.has(state) ? 'none' : state;
  if (state !== 'run' || run.status === 'running') return state;
  return run.status === 'waiting' ? 'you' : run.status === 'paused' ? 'paused' : 'queued';
}

const WORDS: Partial<Record<State, string>> = {
  run: 'at work',
  you: 'needs you',
  paused: 'paused',
  queued: 'to go on',
  cancelled: 'stopped',
  todo: 'to come',
  blocked: 'waits',
  none: 'not done',
  merged: 'merged',
  said: 'done, not merged',
  bad: 'failed',
};

/** The same as words, for what has none of its own. */
export const wordsFor = (state: State): string => WORDS[state] ?? '';

/** What the signs of a plan mean, of those that are in it. */
export const meanings = (parts: { state: State }[]): Partial<Record<State, string>> =>
  Object.fromEntries(parts.map(({ state }) => [state, wordsFor(state)]));
