import type { CheckResult, Run, Step } from '../../api/client';
import type { State } from '../../model/work';
import { within } from './within';

/** The result of a task step. */
export interface TaskFacts {
  id: string;
  status: string;
  text?: string;
  reason?: string | null;
  verified?: boolean;
  agent?: string;
  cost_usd?: number | null;
}

export const taskOf = (step: Step): TaskFacts | null => step.result as TaskFacts | null;

/** The result of a check step. */
export const checksOf = (step: Step): CheckResult[] =>
  step.kind === 'check' && Array.isArray(step.result) ? (step.result as CheckResult[]) : [];

/** The checks that failed, by name and how each ended. */
export const failuresOf = (step: Step): string =>
  checksOf(step)
    .filter((check) => !check.passed)
    .map(({ name, exit_code }) => `${name} failed${exit_code === null ? '' : `, exit ${exit_code}`}`)
    .join('; ');

const QUIET = new Set(['progress', 'lock', 'now', 'budget', 'note', 'read_note', 'astray']);

/** The steps that did something. */
export const telling = (steps: Step[]): Step[] => steps.filter((step) => !QUIET.has(step.kind));

/** The state of one step, in the run that it is of. */
export const stepState = (step: Step, run: Run): State => within(run, own(step));

function own(step: Step): State {
  if (step.error) return 'bad';
  if (!step.ended_at) return step.kind === 'ask' ? 'you' : 'run';
  if (step.kind === 'check') return failuresOf(step) ? 'bad' : 'ok';
  if (step.kind === 'ask') return 'said';
  if (step.kind !== 'task' && step.kind !== 'run') {
    // Kapelle's own steps need no verification.
    const failed = (step.result as { problem?: string | null } | null)?.problem;
    if (failed) return 'bad';
    return step.kind === 'merge' ? 'merged' : 'ok';
  }
  const task = taskOf(step);
  if (task?.status === 'failed') return 'bad';
  if (task?.status === 'cancelled') return 'cancelled';
  return task?.verified ? 'ok' : 'said';
}
