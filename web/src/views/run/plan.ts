import type { Run, Step } from '../../api/client';
import { counted } from '../../model/format';
import { hasEnded, type State } from '../../model/work';
import type { Node } from '../graph';
import { stepState, taskOf } from './step_facts';
import { within, wordsFor } from './within';

export interface Part {
  id: string;
  title: string;
  dependsOn: string[];
  state: State;
  task: string | null;
  about: string;
}

interface Subgoal {
  id: string;
  title: string;
  depends_on?: string[];
}

/** The object that an answer holds amid its words. */
export function objectIn<T>(text: string): T | null {
  const [from, to] = [text.indexOf('{'), text.lastIndexOf('}')];
  try {
    return from < 0 ? null : JSON.parse(text.slice(from, to + 1));
  } catch {
    return null;
  }
}

const inIteration = (step: Step): number | undefined => (step.data as { iteration?: number }).iteration;

/** The numbers of the iterations that have a plan. */
export function planned(steps: Step[]): number[] {
  const found = steps.filter((step) => (step.data as { subgoals?: unknown }).subgoals).map(inIteration);
  return found.filter((number) => number !== undefined);
}

/** The plan of one iteration of a team, and what became of each part. */
export function planOf(run: Run, steps: Step[], iteration: number): Part[] {
  const at = steps.findIndex(
    (step) => inIteration(step) === iteration && (step.data as { subgoals?: unknown }).subgoals,
  );
  const begun = steps[at];
  if (!begun) return [];
  const subgoals = (begun.data as { subgoals: Subgoal[] }).subgoals;
  const answer = steps.slice(0, at).findLast((step) => step.role === 'plan');
  const told = objectIn<{ subgoals?: Subgoal[] }>(answer ? (taskOf(answer)?.text ?? '') : '')?.subgoals ?? [];
  const end = steps.findIndex((step, place) => place > at && step.kind === 'commit');
  const inside = steps.slice(at + 1, end < 0 ? undefined : end);
  return subgoals.map((subgoal, place) => {
    const own = inside.filter((step) => step.position.split('.')[1] === String(place + 1));
    const dependsOn = told.find((other) => other.id === subgoal.id)?.depends_on ?? [];
    return { id: subgoal.id, title: subgoal.title, dependsOn, ...outcome(run, own, dependsOn.length) };
  });
}

function outcome(run: Run, steps: Step[], before: number): Pick<Part, 'state' | 'task' | 'about'> {
  const work = steps.findLast((step) => step.kind === 'task');
  const merge = steps.findLast((step) => step.kind === 'merge');
  const merged = (merge?.result as { commit?: string | null; problem?: string | null } | null) ?? null;
  const task = work?.subject ?? null;
  if (merged?.commit) return { state: 'merged', task, about: `merged ${merged.commit.slice(0, 7)}` };
  if (merged?.problem) return { state: 'bad', task, about: merged.problem };
  if (!work) {
    const state = within(run, before ? 'blocked' : 'todo');
    return {
      state,
      task,
      about: before && !hasEnded(run) ? `after ${counted(before, 'part')}` : wordsFor(state),
    };
  }
  const state = stepState(work, run);
  if (state !== 'ok' && state !== 'said')
    return { state, task, about: wordsFor(state) || (taskOf(work)?.agent ?? '') };
  // Its agent is done; that is no more than said until it is merged.
  return { state: 'said', task, about: hasEnded(run) ? 'done, not merged' : 'done, waiting for its merge' };
}

export const nodeOf = ({ dependsOn, task, ...part }: Part): Node => ({
  ...part,
  after: dependsOn,
  work: task,
});

export const phaseOf = (run: Run): string => String(run.progress.phase ?? '');

/** The success criteria: those that the team agreed on, or those of the specification. */
export function criteriaOf(run: Run): string[] {
  const told = (run.result as { success_criteria?: string[] } | null)?.success_criteria;
  return told ?? (Array.isArray(run.spec.success_criteria) ? run.spec.success_criteria.map(String) : []);
}
