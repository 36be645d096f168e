interface FieldTexts {
  label?: string;
  /** The help below the field. */
  about?: string;
  /** The error for a value that cannot be read. */
  wrong?: string;
  /** The text of an empty choice. */
  empty?: string;
}

export const TIME = 'A duration such as 90s, 10m or 2h.';
const COMMANDS = 'One command per line. Exit code 0 = pass.';
const LIMIT = { wrong: 'A whole number, such as 20.' };

/** Texts of a field, by its name, or by its pattern and its name. */
const TEXTS: Record<string, FieldTexts> = {
  // The work.
  'task.prompt': { about: '' },
  'best-of.prompt': { about: 'All candidates get this prompt.' },
  'debate.prompt': { about: 'The matter to debate.' },
  'debate.action': {
    label: 'Action afterwards',
    about:
      'A task for one of the sides, such as: Implement what you agreed on. Without it, nothing is changed.',
  },
  goal: { about: '' },
  'workflow.task': { about: '' },
  'batch.items': { about: 'One prompt per line. The items are independent of each other.' },
  'batch.saved': {
    label: 'Saved list',
    about: 'Read when the batch starts, instead of items. Lists are under Knowledge.',
    empty: 'none',
  },
  'pipeline.steps': { about: 'One per line, done in order. Each step knows the outcome of the one before.' },
  'loop.steps': { label: 'Further steps', about: 'Steps of every iteration after the prompt, one per line.' },
  'tracks.features': { label: 'Feature file', about: 'A JSON list of features in the directory.' },
  'tracks.tracks': {
    label: 'Tracks',
    about:
      'Parallel lines of work, each with its categories, separated by commas. A track without categories takes the rest.',
  },
  // Verification.
  checks: { label: 'Checks', about: `${COMMANDS} diff_not_empty passes if files changed.` },
  'batch.checks': { about: `Every item must pass them. ${COMMANDS}` },
  'best-of.checks': { about: `Only candidates that pass can win. ${COMMANDS}` },
  'tracks.checks': { about: `They must pass after every merge. ${COMMANDS}` },
  'workflow.checks': { about: `They must pass for every milestone. ${COMMANDS}` },
  'loop.until': { label: 'Commands', about: `The loop ends when all of them pass. ${COMMANDS}` },
  'orchestrate.until': {
    label: 'Goal commands',
    about: `The goal is reached when all of them pass. ${COMMANDS}`,
  },
  'team.verify': { label: 'Commands', about: `They must pass before the reviewer is asked. ${COMMANDS}` },
  success_criteria: {
    label: 'Success criteria',
    about: 'One per line. By default the planner proposes them.',
  },
  eval: { label: 'Score command', about: 'The last line of its output is the score.' },
  direction: { label: 'Direction', about: 'Iterations that are not better are reverted.', empty: 'choose' },
  target: {
    label: 'Target',
    about: 'The loop ends when the score is reached. By default it only improves the score.',
  },
  eval_prompt: { label: 'Criteria for the judge', about: 'The judge also sees the changes.' },
  judge: { label: 'Judge', empty: 'the agent that works' },
  'best-of.judge': {
    about: 'Chooses the best where there is no score command.',
    empty: 'the agent of the run',
  },
  eval_timeout_s: { label: 'Command timeout', about: 'Time limit of each of these commands.' },
  // Participants.
  'best-of.eval': {
    label: 'Score command',
    about: 'The last line of its output is the score. Without one, a judge chooses.',
  },
  'best-of.direction': { about: 'Whether the smaller or the larger score wins.', empty: 'not set' },
  candidates: { label: 'Candidates', about: 'One per line: an agent, or agent:model.' },
  count: {
    label: 'Number of attempts',
    about: 'For a single candidate.',
    wrong: 'A whole number, such as 3.',
  },
  sides: {
    label: 'Sides',
    about: 'Two lines: an agent, or agent:model. By default the agent takes both sides.',
  },
  implementers: {
    label: 'Implementers',
    about: 'One per line, in order of preference: an agent, or agent:model.',
  },
  reviewers: { label: 'Reviewers', about: 'One per line, in order of preference: an agent, or agent:model.' },
  minutes: { label: 'Minutes by', about: 'An agent that takes no side.', empty: 'nobody' },
  // Workspace and agent.
  directory: { about: 'Absolute path of a repository or directory.' },
  agent: { about: 'The agent to use.' },
  model: { about: 'Defaults to the agent’s setting.' },
  template: { about: 'Your saved guidelines, with their agent and model.', empty: 'none' },
  project: { about: 'Created if it doesn’t exist.' },
  'batch.project': { about: 'By default the batch gets its own project.' },
  interactive: {
    label: 'Interactive',
    about: 'Talk to the agent in a terminal; the prompt may be empty.',
  },
  title: { about: 'A short name for lists. By default made from the prompt.' },
  fallback_agents: {
    label: 'Fallback agents',
    about: 'One per line, in order; used if the agent is rate-limited or unavailable.',
  },
  priority: { about: 'Order in the queue.' },
  system_prompt: { label: 'System prompt', about: 'Instructions in addition to the prompt.' },
  env: { label: 'Environment variables', about: 'For agents and commands. Not stored in the database.' },
  base: { label: 'Base', about: 'A branch or commit. By default the current branch.' },
  deliver: { label: 'On completion', about: '' },
  prove: {
    label: 'Prove the checks',
    about: 'Whether passed checks run again on corrupted files, to verify that they test the change.',
    empty: 'as in the settings',
  },
  continue_from: {
    label: 'Task as context',
    about: 'ID of a task whose prompt and result the agent gets.',
  },
  deps_policy: { label: 'If a dependency fails', about: '' },
  depends_on: {
    label: 'Dependencies',
    about: 'IDs of tasks, one per line. The task starts when they have ended.',
  },
  tools: { label: 'Tools', about: 'The only tools that the agent may use, by its own names; one per line.' },
  read_only: { label: 'Read-only', about: 'The agent only reports; its changes are discarded.' },
  coordinate: { label: 'May delegate', about: 'The agent gets Kapelle’s tools to start agents of its own.' },
  browser: { about: 'The agent gets a browser, and the application that the setting browser.serve starts.' },
  tags: { about: 'One per line.' },
  workspace: { label: 'Workspace', empty: 'a worktree in a git repository, else in place' },
  context: { label: 'Context', about: 'Facts for the agent, one per line.' },
  mcp: {
    label: 'MCP servers',
    about: 'Servers that the agent may use, one per line: a command or an https URL.',
  },
  fork_session: { label: 'Fork the conversation' },
  'retry.policy': { label: 'Retry' },
  'batch.options': {
    label: 'Pattern options',
    about: 'As JSON; for debate, its sides: {"sides": [{"agent": "claude"}, {"agent": "codex"}]}',
  },
  'batch.pattern': {
    label: 'Pattern',
    about: 'Pattern for each item, such as debate. By default each item is a task.',
  },
  'batch.merge': {
    label: 'Merge items',
    about: 'Merge passed items into one branch; otherwise each item keeps its own branch.',
  },
  at_once: { label: 'Concurrency', about: 'Number of items worked on at the same time.', ...LIMIT },
  'debate.verify': { label: 'Review by the other side', about: 'The result is revised once.' },
  'tracks.verify': { label: 'Verify', about: 'An agent verifies every step of a feature.' },
  ask: { label: 'May ask you', about: 'Questions that only a person can decide.' },
  confirm: { label: 'Confirm the criteria', about: 'Ask you whether the planner’s proposal is right.' },
  wait: { label: 'Wait for you', about: 'Wait if the workflow is blocked; otherwise it fails.' },
  limits: { label: 'Phase limits', about: 'One per line, such as implement:turns=40,usd=2,minutes=30.' },
  instructions: { label: 'Instruction file', about: 'Instructions for all agents, if the file exists.' },
  progress_file: { label: 'Progress file', about: 'Gets a line about each feature that has ended.' },
  // Limits.
  budget_usd: {
    label: 'Budget',
    about: 'In USD, for all attempts.',
    wrong: 'An amount in USD, such as 5.',
  },
  timeout_s: { label: 'Timeout', about: 'Per attempt: 90s, 10m or 2h.' },
  task_timeout_s: { label: 'Attempt timeout', about: 'Time limit per attempt of a task.' },
  max_seconds: {
    label: 'Time limit',
    about: 'For the whole run: 90m or 3h. Pauses and waiting for you do not count.',
  },
  max_turns: { label: 'Turns', about: 'Maximum per attempt.', ...LIMIT },
  max_agent_calls: { label: 'Maximum agent calls', about: 'Including those of inner runs.', ...LIMIT },
  max_iterations: { label: 'Iterations', about: 'Maximum number.', ...LIMIT },
  max_failures: { label: 'Failures in a row', about: 'Maximum number; 0 for no limit.' },
  max_workers: { label: 'Concurrency', about: 'Number of parts worked on at the same time.' },
  cooldown_s: { label: 'Pause', about: 'Between iterations.' },
  retry_delay_s: { label: 'Retry delay', about: 'Before a failed phase is tried again.' },
  convergence: { label: 'Stop on no progress', about: 'After this many iterations; 0 for never.' },
  checkpoint: {
    label: 'Continue the conversation',
    about: 'From one iteration to the next; otherwise each starts a new one.',
  },
};

/** Texts of the values of a choice. */
const CHOICES: Record<string, Record<string, string>> = {
  direction: { minimize: 'smaller is better', maximize: 'larger is better' },
  deliver: { branch: 'keep the branch', merge: 'merge', pr: 'open a pull request' },
  deps_policy: { cancel: 'cancel', run: 'start anyway' },
  priority: { P0: 'P0, first', P1: 'P1', P2: 'P2, last' },
  workspaces: { shared: 'one worktree for all steps', each: 'one worktree per step' },
  workspace: { worktree: 'its own git worktree', in_place: 'the directory itself' },
  'retry.policy': {
    none: 'no retry',
    same: 'retry',
    analyze: 'analyze the failure, then retry',
  },
  actor: { one: 'side one', two: 'side two' },
};

export const textsOf = (pattern: string, name: string): FieldTexts => ({
  ...TEXTS[name],
  ...TEXTS[`${pattern}.${name}`],
});

export const choiceText = (name: string, choice: string): string => CHOICES[name]?.[choice] ?? choice;
