import { type Attempt, isRun, type MergePreview, type Run, type Task, type Work } from '../api/client';
import { capital, clock, counted, secondsBetween, sentence } from './format';

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

/** What an attempt came to. */
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

/** The state in bold and why, as two sentences. */
export function verdict(work: Work, now: number): [string, string] {
  const reason = work.reason ? sentence(capital(work.reason)) : '';
  switch (work.status) {
    case 'running': {
      const since = work.started_at
        ? `Running for ${clock(secondsBetween(work.started_at, now))}.`
        : 'Running.';
      return isRun(work) ? ofRun(work, since, reason) : [since, atWorkOn(work)];
    }
    case 'waiting':
      return asksYou(work) ? ['Waits for you.', reason] : ['Waits.', reason];
    case 'completed':
      if (work.merged_at) return ['Merged.', reason];
      return ['Completed.', reason || (work.verified ? 'All checks passed.' : 'Nothing was checked.')];
    case 'failed':
      return stateOf(work) === 'lost' ? ['Nobody saw the end.', reason] : ['Failed.', reason];
    case 'blocked':
      return ['Blocked.', reason];
    default:
      return [sentence(capital(work.status)), reason];
  }
}

/** What a run is at, then for how long, how well, and with what. */
function ofRun(run: Run, since: string, reason: string): [string, string] {
  const { iteration, step, steps, phase, best } = run.progress as Progress;
  const most = run.spec.max_iterations;
  const at =
    typeof iteration === 'number'
      ? `Iteration ${iteration}${typeof most === 'number' && most > 0 ? ` of ${most}` : ''}`
      : typeof step === 'number'
        ? `Step ${step} of ${String(steps)}`
        : '';
  const target = typeof run.spec.target === 'number' ? `, target ${run.spec.target}` : '';
  const parts = reason.split(' is running').length - 1;
  const doing = parts > 2 ? `${parts} of its tasks are running.` : reason;
  const facts = [since, typeof best === 'number' ? `Best so far ${best}${target}.` : '', doing];
  if (!at) return [since, doing];
  return [typeof phase === 'string' ? `${at}, ${phase}.` : `${at}.`, facts.filter(Boolean).join(' ')];
}

function atWorkOn(task: Task): string {
  if (task.checking) return `Checks: ${task.checking.name}.`;
  const attempt = latest(task);
  return attempt && attempt.number > 1 ? `Attempt ${attempt.number}.` : '';
}

export const whoOf = (work: Work): string => (isRun(work) ? String(work.spec.agent ?? '') : work.agent);

/** What it costs so far; null when a part of it has no price. */
export function costOf(work: Work, now?: Attempt['usage']): number | null | undefined {
  if (isRun(work)) return work.spent.cost_usd;
  const before = now ? work.attempts.slice(0, -1) : work.attempts;
  const used = [...before.map((attempt) => attempt.usage), now ?? null];
  const known = used.filter((usage) => usage !== null);
  if (known.length === 0) return undefined;
  return known.some((usage) => usage.cost_usd === null)
    ? null
    : known.reduce((sum, usage) => sum + (usage.cost_usd ?? 0), 0);
}

/** Whether a pull request is open at its forge. */
export const isOpen = (work: Work): boolean => ['draft', 'open'].includes(work.delivery?.state ?? '');

/** Whether a merge or pull request that was asked for needs somebody. */
export const isUndelivered = (work: Work): boolean =>
  work.delivery?.status === 'failed' ||
  (work.status === 'completed' && work.delivery?.status === 'pending' && !!work.delivery.reason) ||
  (isOpen(work) && work.delivery?.ci === 'failed');

/** Whether a result lies on a branch that nobody has merged. */
export function canMerge(work: Work): boolean {
  const { branch, commit, base_commit } = work.workspace;
  const changed = !!branch && !!commit && commit !== base_commit;
  return work.status === 'completed' && !work.merged_at && changed;
}

/** What keeps work from being merged as it is, by what its daemon tells of the merge. */
export const obstacle = (preview: MergePreview): string | null =>
  preview.problem ??
  (preview.conflicts.length > 0
    ? `conflicts in ${counted(preview.conflicts.length, 'file')}`
    : preview.dirty.length > 0
      ? `${counted(preview.dirty.length, 'file')} of your checkout in its way`
      : null);

export const isMergeable = (work: Work): boolean => canMerge(work) && work.verified === true;

export const checksLine = (task: Task): string => {
  const failed = task.checks.filter((check) => !check.passed).length;
  return failed
    ? `${failed} of ${task.checks.length} failed`
    : `${task.checks.length} of ${counted(task.checks.length, 'check')}`;
};

export interface Progress {
  [fact: string]: unknown;
}

/** How far a run is, in a word or two. */
export function progressOf(run: Run): string {
  const facts = run.progress as Progress;
  if (run.status === 'waiting') return 'asks';
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
