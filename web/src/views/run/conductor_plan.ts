import type { Run, Step } from '../../api/client';
import type { State } from '../../model/work';
import type { Node } from '../graph';
import { within, wordsFor } from './within';

export interface Part {
  id: string;
  title: string;
  kind: string;
  status: 'open' | 'merged' | 'failed' | 'conflict' | 'blocked';
  depends_on?: string[];
  reason?: string | null;
  work?: string[];
}

export interface Result {
  plan?: Part[];
  checks?: { name: string; passed: boolean }[];
  verdict?: { reached: boolean; reason: string } | null;
}

const STATES: Record<Part['status'], State> = {
  open: 'todo',
  merged: 'merged',
  failed: 'bad',
  conflict: 'bad',
  blocked: 'blocked',
};

export const partsOf = (run: Run): Part[] =>
  (run.result as Result | null)?.plan ?? (run.progress.plan as Part[] | undefined) ?? [];

/** The steps that work on each part now: the parts that were open are branches of the run, in that order. */
function openSteps(steps: Step[]): Map<string, Step> {
  const isBegin = (step: Step) =>
    step.kind === 'progress' &&
    !step.position.includes('.') &&
    (step.data as { phase?: string }).phase === 'work';
  const at = steps.findLastIndex(isBegin);
  const plan = (steps[at]?.data as { plan?: Part[] } | undefined)?.plan ?? [];
  const found = new Map<string, Step>();
  for (const [place, part] of plan.filter(({ status }) => status === 'open').entries()) {
    const own = steps
      .slice(at + 1)
      .findLast(
        (step) =>
          (step.kind === 'task' || step.kind === 'run') && step.position.split('.')[1] === String(place + 1),
      );
    if (own) found.set(part.id, own);
  }
  return found;
}

/** The plan as nodes of a graph, and what became of each part. */
export function nodesOf(run: Run, steps: Step[]): Node[] {
  const open = openSteps(steps);
  return partsOf(run).map((part) => nodeOf(part, open.get(part.id), run));
}

function nodeOf(part: Part, step: Step | undefined, run: Run): Node {
  const works = part.status === 'open' && !!step && !step.ended_at;
  const state = within(run, works ? 'run' : STATES[part.status]);
  const before = part.depends_on ?? [];
  const words = wordsFor(state) || part.status;
  // What it waited for tells nothing any more once nothing comes.
  const about = state === 'merged' || state === 'none' ? words : (part.reason ?? words);
  return {
    id: part.id,
    title: part.title,
    about: part.kind === 'task' ? about : `${part.kind}, ${about}`,
    state,
    after: before,
    work: (works ? step?.subject : null) ?? part.work?.at(-1) ?? step?.subject,
  };
}
