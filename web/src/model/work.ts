import { type Attempt, isRun, type MergePreview, type Run, type Task, type Work } from '../api/client';
import { capital, clock, counted, inline, secondsBetween, sentence } from './format';
import { priceOf } from './price';
import { blindLine, proofLine } from './proof';

export type State =
  | 'you'
  | 'idle'
  | 'run'
  | 'ok'
  | 'said'
  | 'merged'
  | 'bad'
  | 'lost'
  | 'queued'
  | 'blocked'
  | 'limit'
  | 'paused'
  | 'cancelled'
  | 'todo'
  | 'none';

export const latest = (task: Task): Attempt | undefined => task.attempts.at(-1);

export const hasEnded = (work: Work): boolean => ['completed', 'failed', 'cancelled'].includes(work.status);

export const asksYou = (work: Work): boolean =>
  work.status === 'waiting' && work.waiting_for !== 'rate_limit';

export const parentOf = (work: Work): string | null => (isRun(work) ? work.parent_id : work.run_id);

/** The state that the glyph of a piece of work shows. */
export function stateOf(work: Work): State {
  switch (work.status) {
    case 'running':
      return 'run';
    case 'waiting':
      return asksYou(work) ? 'you' : 'limit';
    case 'completed':
      if (work.merged_at) return 'merged';
      return work.verified ? 'ok' : 'said';
    case 'failed':
      return !isRun(work) && latest(work)?.status === 'lost' ? 'lost' : 'bad';
    default:
      return work.status;
  }
}

/** The state that decides the colour of a piece of work: a merge proves nothing. */
export function provenState(work: Work): State {
  const state = stateOf(work);
  if (state !== 'merged') return state;
  return work.verified ? 'ok' : 'said';
}

/** The state of a run by what is inside it: one whose tasks all wait for a limit does not move. */
export function stateInside(run: Run, all: Work[]): State {
  const state = stateOf(run);
  if (state !== 'run') return state;
  const parts = all.filter((work) => parentOf(work) === run.id && !hasEnded(work));
  const states = parts.map((part) => (isRun(part) ? stateInside(part, all) : stateOf(part)));
  if (states.length === 0 || !states.every((one) => WAITS.has(one))) return state;
  return states.includes('limit') ? 'limit' : 'queued';
}

const WAITS = new Set<State>(['limit', 'queued', 'blocked']);

/** The state of an attempt. */
export function attemptState(attempt: Attempt, task: Task): State {
  if (attempt.status === 'running') return 'run';
  if (attempt.status === 'completed') {
    if (attempt !== latest(task)) return 'said';
    return task.verified ? 'ok' : 'said';
  }
  if (attempt.question && attempt.status === 'failed') return 'you';
  return attempt.status === 'failed' ? 'bad' : attempt.status;
}

/** A reason with titles instead of the ids that are known. */
export const named = (reason: string, titleOf: (id: string) => string | undefined): string =>
  reason.replace(/\b(task|run)_[0-9a-z]{26}\b/g, (id) => titleOf(id) ?? id);

/** The repository of work, or else its directory. */
export const repositoryOf = (work: Work): string => work.repository ?? work.directory;

/** Tells whether a run starts nothing more and is paused when its agents have ended. */
export const isPausing = (work: Work): boolean =>
  isRun(work) && work.status === 'running' && work.stop === 'pause';

/** The state in bold and why, as two sentences; with the titles of what runs inside a run. */
export function verdict(work: Work, now: number, inside: string[] = []): [string, string] {
  const reason = work.reason ? sentence(capital(inline(work.reason))) : '';
  switch (work.status) {
    case 'running': {
      const begun = isRun(work) ? work.started_at : (latest(work)?.started_at ?? work.started_at);
      const since = begun ? `Running for ${clock(secondsBetween(begun, now))}.` : 'Running.';
      if (!isRun(work)) return [since, atWorkOn(work)];
      if (isPausing(work)) return ['Pausing.', ending(inside.length)];
      return ofRun(work, since, doing(inside) || reason);
    }
    case 'waiting':
      if (!asksYou(work)) return ['Waiting.', reason];
      // What it asks stands below, with the field for the answer.
      return ['Needs you.', ''];
    case 'completed':
      if (work.merged_at) return ['Merged.', reason];
      return completed(work, reason);
    case 'failed':
      return stateOf(work) === 'lost' ? ['Outcome unknown.', reason] : ['Failed.', reason];
    case 'blocked':
      return ['Blocked.', reason];
    default:
      return [sentence(capital(work.status)), reason];
  }
}

/** The one verdict on completed work: proven, or why it is not. */
function completed(work: Work, reason: string): [string, string] {
  const checks = isRun(work) ? [] : work.checks;
  if (work.verified) {
    const blind = blindLine(checks);
    const passed = blind ? `All checks passed; ${blind}.` : 'All checks passed.';
    return ['Completed.', reason || passed];
  }
  if (checks.length > 0) {
    return ['Completed, not proven:', [sentence(blindLine(checks)), reason].filter(Boolean).join(' ')];
  }
  if (!canMerge(work)) return ['Completed.', reason || 'No checks ran.'];
  return ['Completed, not proven:', [`${proofLine(work)}.`, reason].filter(Boolean).join(' ')];
}

const ending = (agents: number): string =>
  agents > 0
    ? `The run starts no more work and waits for ${counted(agents, 'agent')}.`
    : 'The run starts no more work and waits for its active work.';

function doing(titles: string[]): string {
  const last = titles.at(-1);
  if (last === undefined) return '';
  if (titles.length > 3) return `${titles.length} parts are running.`;
  const before = titles.slice(0, -1).join(', ');
  return before ? `${before} and ${last} are running.` : `${last} is running.`;
}

/** The progress of a run, then its duration, best score and active parts. */
function ofRun(run: Run, since: string, reason: string): [string, string] {
  const { iteration, step, steps, phase, best } = run.progress as Progress;
  const most = run.spec.max_iterations;
  const limit = typeof most === 'number' && most > 0 ? ` of ${most}` : '';
  let at = '';
  if (typeof iteration === 'number') at = `Iteration ${iteration}${limit}`;
  else if (typeof step === 'number') at = `Step ${step} of ${String(steps)}`;
  const target = typeof run.spec.target === 'number' ? `, target ${run.spec.target}` : '';
  const facts = [since, typeof best === 'number' ? `Best so far ${best}${target}.` : '', reason];
  if (!at) return [since, reason];
  return [typeof phase === 'string' ? `${at}, ${phase}.` : `${at}.`, facts.filter(Boolean).join(' ')];
}

function atWorkOn(task: Task): string {
  if (task.checking) return `Checks: ${task.checking.name}.`;
  const attempt = latest(task);
  return attempt && attempt.number > 1 ? `Attempt ${attempt.number}.` : '';
}

export const whoOf = (work: Work): string => (isRun(work) ? String(work.spec.agent ?? '') : work.agent);

/** The cost so far; null if a part of it has no price. */
export function costOf(work: Work): number | null | undefined {
  const price = priceOf(work);
  return price && (price.unknown > 0 ? null : price.usd);
}

/** Tells whether the pull request is open at its forge. */
export const isOpen = (work: Work): boolean => ['draft', 'open'].includes(work.delivery?.state ?? '');

/** Tells whether the delivery of work needs a person. */
export const isUndelivered = (work: Work): boolean =>
  work.delivery?.status === 'failed' ||
  (work.status === 'completed' && work.delivery?.status === 'pending' && !!work.delivery.reason) ||
  (isOpen(work) && work.delivery?.ci === 'failed');

/** Tells whether completed work has an unmerged branch. */
export const canMerge = (work: Work): boolean => work.status === 'completed' && isUnmerged(work);

/** Tells whether an unsuccessful run has an unmerged branch. */
export const canMergeAnyway = (work: Work): work is Run =>
  isRun(work) && ['failed', 'cancelled'].includes(work.status) && isUnmerged(work);

function isUnmerged({ merged_at, workspace }: Work): boolean {
  const { branch, commit, base_commit, owner } = workspace;
  return !merged_at && !owner && !!branch && !!commit && commit !== base_commit;
}

/** The reason why work cannot be merged as it is; null if it can. */
export function obstacle({ problem, conflicts, dirty }: MergePreview): string | null {
  if (problem !== null) return problem;
  if (conflicts.length > 0) return `conflicts in ${counted(conflicts.length, 'file')}`;
  return dirty.length > 0 ? `${counted(dirty.length, 'changed file')} in your checkout` : null;
}

export const isMergeable = (work: Work): boolean => canMerge(work) && work.verified === true;

export const checksLine = (task: Task): string => {
  const failed = task.checks.filter((check) => !check.passed).length;
  if (failed) return `${failed} of ${task.checks.length} failed`;
  const passed = `${task.checks.length} of ${counted(task.checks.length, 'check')}`;
  const blind = blindLine(task.checks);
  return blind ? `${passed}, ${blind}` : passed;
};

export interface Progress {
  [fact: string]: unknown;
}

/** The progress of a run in a few words. */
export function progressOf(run: Run): string {
  const facts = run.progress as Progress;
  if (run.status === 'waiting') return 'needs you';
  if (run.status === 'paused' || run.status === 'queued') return run.status;
  if (typeof facts.iteration === 'number') {
    const most = run.spec.max_iterations;
    return typeof most === 'number' && most > 0
      ? `${facts.iteration} of ${most}`
      : `iteration ${facts.iteration}`;
  }
  if (typeof facts.step === 'number') return `${facts.step} of ${String(facts.steps)}`;
  return run.pattern;
}
