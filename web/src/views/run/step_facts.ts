import type { Step } from '../../api/client';
import type { State } from '../../model/work';

/** What a task step of a run leaves. */
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

/** The state of one step. */
export function stepState(step: Step): State {
  if (step.error) return 'bad';
  if (!step.ended_at) return step.kind === 'ask' ? 'you' : 'run';
  if (step.kind !== 'task') return 'said';
  const task = taskOf(step);
  if (task?.status === 'failed') return 'bad';
  if (task?.status === 'cancelled') return 'cancelled';
  return task?.verified ? 'ok' : 'said';
}
