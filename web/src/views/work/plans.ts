import type { Run, Step } from '../../api/client';
import { planned, planOf } from '../run/plan';

/** After which other work each piece of work comes, by their ids. */
export type After = Map<string, string[]>;

interface Part {
  id: string;
  status?: string;
  depends_on?: string[];
  work?: string[];
}

/** Tells whether some parts of a run depend on others. */
export const hasPlan = (run: Run): boolean => run.pattern === 'team' || run.pattern === 'orchestrate';

/** The dependencies between the parts of a run, by its plan. */
export function afterIn(run: Run, steps: Step[]): After {
  const after: After = new Map();
  if (run.pattern === 'team') {
    for (const iteration of planned(steps)) {
      const parts = planOf(run, steps, iteration);
      join(
        after,
        parts.map(({ id, dependsOn, task }) => ({ id, before: dependsOn, work: task ? [task] : [] })),
      );
    }
    return after;
  }
  const told = (run.result as { plan?: Part[] } | null)?.plan ?? (run.progress.plan as Part[] | undefined);
  const open = worksOf(steps);
  join(
    after,
    (told ?? []).map(({ id, depends_on = [], work = [] }) => ({
      id,
      before: depends_on,
      work: [...work, ...(open.get(id) ?? [])],
    })),
  );
  return after;
}

/** The work on each part of a conducted plan: the parts that were open are branches of the run, in that order. */
function worksOf(steps: Step[]): Map<string, string[]> {
  const found = new Map<string, string[]>();
  let open: Part[] = [];
  for (const step of steps) {
    const { phase, plan } = step.data as { phase?: string; plan?: Part[] };
    const [, branch] = step.position.split('.');
    if (step.kind === 'progress' && branch === undefined && phase === 'work')
      open = (plan ?? []).filter(({ status }) => status === 'open');
    const part = open[Number(branch) - 1]?.id;
    if (part && step.subject && (step.kind === 'task' || step.kind === 'run'))
      found.set(part, [...(found.get(part) ?? []), step.subject]);
  }
  return found;
}

/** Each work on a part comes after the last work on every part that this one depends on. */
function join(after: After, parts: { id: string; before: string[]; work: string[] }[]): void {
  const last = new Map(parts.map(({ id, work }) => [id, work.at(-1)]));
  for (const { before, work } of parts) {
    const [first] = work;
    const found = before.map((id) => last.get(id)).filter((id) => id !== undefined);
    if (first && found.length > 0) after.set(first, [...(after.get(first) ?? []), ...found]);
  }
}
