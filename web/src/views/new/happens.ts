import type { Typed } from './schema';

interface Told {
  work: string;
  /** What decides where commands are named; by default they alone. */
  checked?: string;
  unchecked: string;
}

const ONLY_THAT = 'What you name is run on what it committed; only that counts.';
const ONLY_SAID = 'Nothing is checked, so what it says is all that is known.';

/** What is done by whom, and what decides, where that is otherwise than for a task. */
const TOLD: Record<string, (typed: Typed) => Told> = {
  loop: ({ eval_mode }) => ({
    work: 'One agent after another works in it, each with what the one before left.',
    checked: 'After each, what you name is run; it decides whether another one begins.',
    unchecked:
      eval_mode === 'agent'
        ? 'After each, a judge looks at it and decides whether another one begins.'
        : 'Name what must hold, or what is to be measured: that ends it.',
  }),
  pipeline: () => ({
    work: 'The steps are done in it one after another.',
    unchecked:
      'Only the steps that have checks are checked; of the others, what agents say is all that is known.',
  }),
  team: () => ({
    work: 'One agent plans, others work on the parts at once, each in a worktree of its own.',
    checked: 'What you name is run on what they brought together, then a reviewer answers four questions.',
    unchecked: 'No command is run; a reviewer answers four questions about what they brought together.',
  }),
  'best-of': () => ({
    work: 'Several agents do the same, each in a worktree of its own.',
    checked: 'What you name is run on the work of each; the best of those that pass wins.',
    unchecked: 'A judge compares what they did, and one wins.',
  }),
  orchestrate: () => ({
    work: 'An agent conducts others: it plans parts, and changes the plan when it sees what came of them.',
    checked: 'What you name is run on what they brought together; it decides whether the goal is reached.',
    unchecked: 'A judge, who is not the conductor, decides whether the goal is reached.',
  }),
  workflow: () => ({
    work: 'An agent plans milestones; then review and implementation take turns until all of them hold.',
    checked:
      'A milestone holds by its own check, else by the reviewer’s word, and only while what you name passes.',
    unchecked: 'A milestone holds by its own check, else by the reviewer’s word, never by who did it.',
  }),
  tracks: ({ verify }) => ({
    work: 'Each feature is implemented in a worktree of its own, one after another in each track.',
    ...(verify === 'false'
      ? {
          checked:
            'What you name is run on each with all that is merged already; only what passes is merged.',
          unchecked: 'Nothing is verified, so what agents say is all that is known.',
        }
      : {
          checked:
            'With all that is merged already, what you name is run on each and an agent verifies it; only what passes is merged.',
          unchecked: 'An agent verifies each with all that is merged already; only what passes is merged.',
        }),
  }),
  debate: ({ action, verify }) => ({
    work: `Two sides debate in rounds until they agree or the rounds are over${action ? '; then one acts on it' : ''}.`,
    checked: 'What you name is run on what was done; only that counts.',
    unchecked: !action
      ? 'What they agree on and what stays open is the result; nothing is to be changed.'
      : verify === 'true'
        ? 'The other side looks at what was done, and it is refined once; no command is run.'
        : 'Nobody looks at what was done, so what the acting side says is all that is known.',
  }),
  batch: ({ pattern, merge }) => ({
    work: 'Each item is done in a worktree of its own, so many at once; one that fails stops no other.',
    checked: `What you name is run on each item; what passes ${merge === 'false' ? 'stays on a branch of its own' : 'is brought together'}.`,
    unchecked: pattern
      ? `Each item is decided on as a ${pattern} is.`
      : 'You name no check, so of each item what its agent says is all that is known.',
  }),
};

const DELIVERED: Record<string, string> = {
  merge: 'What is completed is merged into the branch it began from.',
  pr: 'What is completed is pushed and becomes a pull request.',
};

/** What follows when this is started, step by step. */
export function happensOf(pattern: string, typed: Typed, agent: string | undefined): string[] {
  const told = TOLD[pattern]?.(typed);
  const command = ['tracks', 'debate'].includes(pattern) ? '' : typed.verify;
  const place = typed.directory?.split('/').findLast(Boolean) ?? 'the directory';
  const inPlace = typed.workspace === 'in_place';
  return [
    inPlace
      ? `${place} itself is changed; nothing is merged.`
      : `A worktree of ${place} is made from ${typed.base || 'the branch that is checked out'}; your files are not touched. Only where there is no git repository, ${place} itself is changed.`,
    told?.work ?? `${agent ?? 'The agent that you choose'} works in it.`,
    typed.checks || typed.until || typed.eval || command
      ? (told?.checked ?? ONLY_THAT)
      : (told?.unchecked ?? ONLY_SAID),
    ...(inPlace ? [] : [DELIVERED[typed.deliver ?? ''] ?? 'You merge the result, or not.']),
  ];
}
