import type { Run, Step } from '../../api/client';
import type { State } from '../../model/work';
import { stepState, taskOf } from './step_facts';

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
function objectIn(text: string): { subgoals?: Subgoal[] } | null {
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
export function planOf(steps: Step[], iteration: number): Part[] {
  const at = steps.findIndex(
    (step) => inIteration(step) === iteration && (step.data as { subgoals?: unknown }).subgoals,
  );
  const begun = steps[at];
  if (!begun) return [];
  const subgoals = (begun.data as { subgoals: Subgoal[] }).subgoals;
  const answer = steps.slice(0, at).findLast((step) => step.kind === 'task' && step.label.startsWith('Plan'));
  const told = objectIn(answer ? (taskOf(answer)?.text ?? '') : '')?.subgoals ?? [];
  const end = steps.findIndex((step, place) => place > at && step.kind === 'commit');
  const inside = steps.slice(at + 1, end < 0 ? undefined : end);
  return subgoals.map((subgoal, place) => {
    const own = inside.filter((step) => step.position.split('.')[1] === String(place + 1));
    const dependsOn = told.find((other) => other.id === subgoal.id)?.depends_on ?? [];
    return { id: subgoal.id, title: subgoal.title, dependsOn, ...outcome(own, dependsOn.length) };
  });
}

function outcome(steps: Step[], before: number): Pick<Part, 'state' | 'task' | 'about'> {
  const work = steps.findLast((step) => step.kind === 'task');
  const merge = steps.findLast((step) => step.kind === 'merge');
  const merged = (merge?.result as { commit?: string | null; problem?: string | null } | null) ?? null;
  const task = work?.subject ?? null;
  if (merged?.commit) return { state: 'merged', task, about: `merged ${merged.commit.slice(0, 7)}` };
  if (merged?.problem) return { state: 'bad', task, about: merged.problem };
  if (!work)
    return {
      state: before ? 'blocked' : 'todo',
      task,
      about: before ? `after ${before} of them` : 'to come',
    };
  const state = stepState(work);
  const about = taskOf(work)?.agent ?? (state === 'run' ? 'at work' : '');
  return {
    state: state === 'ok' || state === 'said' ? 'run' : state,
    task,
    about: about || 'done, to be merged',
  };
}

/** How far down a plan each part is: behind everything that it depends on. */
export function layersOf(parts: Part[]): Part[][] {
  const depth = new Map<string, number>();
  const of = (part: Part, seen: Set<string>): number => {
    const known = depth.get(part.id);
    if (known !== undefined || seen.has(part.id)) return known ?? 0;
    const before = parts.filter((other) => part.dependsOn.includes(other.id));
    const found = Math.max(-1, ...before.map((other) => of(other, new Set([...seen, part.id])))) + 1;
    depth.set(part.id, found);
    return found;
  };
  const layers: Part[][] = [];
  for (const part of parts) {
    const layer = of(part, new Set());
    layers[layer] = [...(layers[layer] ?? []), part];
  }
  return layers.filter(Boolean);
}

export const phaseOf = (run: Run): string => String(run.progress.phase ?? '');
