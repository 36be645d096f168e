import type { Typed } from './schema';

/** The steps of a pattern, and its verification with and without checks in the form. */
interface Steps {
  work: string;
  /** By default the commands alone decide. */
  checked?: string;
  unchecked: string;
}

const CHECKS_DECIDE = 'Your checks run on its commit; only their result counts.';
const UNVERIFIED = 'There are no checks, so the agent’s report is unverified.';

function loopSteps({ eval_mode }: Typed): Steps {
  const judged = 'After each iteration, a judge decides whether another one starts.';
  return {
    work: 'In each iteration an agent continues from the work of the one before.',
    checked: 'After each iteration your command runs; its result decides whether another one starts.',
    unchecked: eval_mode === 'agent' ? judged : 'Enter the condition or the score that ends the loop.',
  };
}

function tracksSteps({ verify }: Typed): Steps {
  const work = 'Each feature is implemented in its own worktree, one after another in each track.';
  if (verify === 'false') {
    return {
      work,
      checked: 'Your checks run on each feature merged with the others; only what passes is merged.',
      unchecked: 'Nothing is verified, so the agents’ reports are unverified.',
    };
  }
  return {
    work,
    checked:
      'Merged with the others, each feature is checked and verified by an agent; only what passes is merged.',
    unchecked: 'Merged with the others, each feature is verified by an agent; only what passes is merged.',
  };
}

function debateSteps({ action, verify }: Typed): Steps {
  const steps = {
    work: 'Two sides debate in rounds until they agree or the last round is over.',
    checked: CHECKS_DECIDE,
    unchecked: 'The result is what they agree on and what stays open; nothing is changed.',
  };
  if (!action) return steps;
  steps.work = 'Two sides debate in rounds until they agree or the last round is over; then one side acts.';
  steps.unchecked =
    verify === 'true'
      ? 'The other side reviews the work, which is revised once; no command runs.'
      : 'Nobody reviews the work, so the acting side’s report is unverified.';
  return steps;
}

function batchSteps({ pattern, merge }: Typed): Steps {
  const passed = merge === 'false' ? 'keep their own branches' : 'are merged';
  return {
    work: 'Each item is done in its own worktree, several at the same time; a failed item stops no other.',
    checked: `Your checks run on each item; items that pass ${passed}.`,
    unchecked: pattern
      ? `Each item is verified as in the pattern ${pattern}.`
      : 'There are no checks, so the agents’ reports are unverified.',
  };
}

/** The steps of each pattern that differ from those of a task. */
const STEPS: Record<string, (typed: Typed) => Steps> = {
  loop: loopSteps,
  pipeline: () => ({
    work: 'The steps are done in order.',
    unchecked: 'Only steps with checks are verified.',
  }),
  team: () => ({
    work: 'One agent plans; others work on the parts in parallel, each in its own worktree.',
    checked: 'Your commands run on the merged work, then a reviewer answers 4 questions.',
    unchecked: 'No command runs; a reviewer answers 4 questions about the merged work.',
  }),
  'best-of': () => ({
    work: 'Several agents do the same task, each in its own worktree.',
    checked: 'Your checks run on the work of each; the best candidate that passes wins.',
    unchecked: 'A judge compares the candidates and chooses one.',
  }),
  orchestrate: () => ({
    work: 'A conductor plans parts for other agents, and changes the plan as results come in.',
    checked: 'Your commands run on the merged work and decide whether the goal is reached.',
    unchecked: 'A judge, who is not the conductor, decides whether the goal is reached.',
  }),
  workflow: () => ({
    work: 'An agent plans milestones; then review and implementation alternate until all milestones hold.',
    checked: 'A milestone is ticked by its own check, else by the reviewer, and only while your checks pass.',
    unchecked: 'A milestone is ticked by its own check, else by the reviewer, never by its implementer.',
  }),
  tracks: tracksSteps,
  debate: debateSteps,
  batch: batchSteps,
};

const DELIVERY: Record<string, string> = {
  merge: 'Completed work is merged into its base.',
  pr: 'Completed work is pushed as a pull request.',
};

/** The steps that follow a start. */
export function happensOf(pattern: string, typed: Typed, agent: string | undefined): string[] {
  const steps = STEPS[pattern]?.(typed);
  const command = ['tracks', 'debate'].includes(pattern) ? '' : typed.verify;
  const hasChecks = Boolean(typed.checks || typed.until || typed.eval || command);
  const place = typed.directory?.split('/').findLast(Boolean) ?? 'the directory';
  const work = steps?.work ?? `${agent ?? 'The agent that you choose'} works in it.`;
  const verification = hasChecks ? (steps?.checked ?? CHECKS_DECIDE) : (steps?.unchecked ?? UNVERIFIED);
  if (typed.workspace === 'in_place') {
    return [`${place} itself is changed; nothing is merged.`, work, verification];
  }
  const base = typed.base || 'the current branch';
  return [
    `A worktree of ${place} is made from ${base}; your files are not touched. Without a git repository, ${place} itself is changed.`,
    work,
    verification,
    DELIVERY[typed.deliver ?? ''] ?? 'You decide whether to merge.',
  ];
}
