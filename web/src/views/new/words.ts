interface Words {
  label?: string;
  /** What it means, to somebody who fills in a form. */
  about?: string;
  /** What is to be typed instead of what cannot be read. */
  wrong?: string;
  /** What an empty choice means. */
  empty?: string;
}

export const TIME = 'A time such as 90s, 10m or 2h.';
const COMMANDS = 'Commands, one in each line; only their exit status counts.';
const LIMIT = { wrong: 'A whole number, such as 20.' };

/** What a field is called and what it means, by its name or by its pattern and its name. */
const WORDS: Record<string, Words> = {
  // What is done.
  'task.prompt': { about: '' },
  'best-of.prompt': { about: 'All get the same.' },
  'debate.prompt': { about: 'What the two debate about.' },
  'debate.action': {
    label: 'Then',
    about:
      'What one of them does afterwards, such as: Implement what you agreed on. Without it, nothing is changed.',
  },
  goal: { about: '' },
  'workflow.task': { about: '' },
  'batch.items': { about: 'One in each line: what an agent is asked to do, independent of the others.' },
  'batch.saved': {
    label: 'Saved list',
    about: 'Instead of items: a list of yours, as it is at the start. Lists are kept under Knowledge.',
    empty: 'none',
  },
  'pipeline.steps': { about: 'One in each line, done one after another; each knows what came before.' },
  'loop.steps': {
    label: 'Further steps',
    about: 'What is done in every iteration after the prompt, one in each line.',
  },
  'tracks.features': { label: 'File of features', about: 'In the directory: JSON, a list of features.' },
  'tracks.tracks': {
    label: 'Tracks',
    about:
      'Lines of work that go side by side, each with its categories, separated by commas. One without any takes the rest.',
  },
  // What must hold.
  checks: { label: 'Checks', about: `${COMMANDS} diff_not_empty stands for “something was changed”.` },
  'batch.checks': { about: `What must pass of every item. ${COMMANDS}` },
  'best-of.checks': { about: `Only who passes them can win. ${COMMANDS}` },
  'tracks.checks': { about: `What must pass after every merge. ${COMMANDS}` },
  'workflow.checks': { about: `Without them no milestone is done. ${COMMANDS}` },
  'loop.until': { label: 'Commands', about: `It is done when all of them pass. ${COMMANDS}` },
  'orchestrate.until': { label: 'Until these pass', about: `The goal is reached then. ${COMMANDS}` },
  'team.verify': { label: 'Commands', about: `What must pass before a reviewer is asked. ${COMMANDS}` },
  success_criteria: {
    label: 'What must be true',
    about: 'One in each line. Without any, the planner proposes them.',
  },
  eval: { label: 'Command', about: 'The last line that it prints is the number.' },
  direction: { label: 'Which way', about: 'What is not better is put back.', empty: 'choose' },
  target: {
    label: 'Good enough at',
    about: 'Done when the number is reached. Without one, it only gets better.',
  },
  eval_prompt: { label: 'What the judge looks at', about: 'In your words; the judge sees what was changed.' },
  judge: { label: 'Judge', empty: 'the agent that works' },
  'best-of.judge': { about: 'Chooses the best where no command measures it.', empty: 'the agent of the run' },
  eval_timeout_s: { label: 'Time for a command', about: 'The longest that one of those commands may take.' },
  // Who takes part.
  'best-of.eval': {
    label: 'Command that scores',
    about: 'The last line that it prints is the score. Without one, a judge chooses.',
  },
  'best-of.direction': { about: 'Whether the smaller or the larger score wins.', empty: 'not set' },
  candidates: { label: 'Candidates', about: 'One in each line: an agent, or agent:model.' },
  count: {
    label: 'How often',
    about: 'So many tries, where one agent takes part.',
    wrong: 'A whole number, such as 3.',
  },
  sides: {
    label: 'The two sides',
    about: 'Two lines: an agent, or agent:model. Without any, the agent on both sides.',
  },
  implementers: {
    label: 'Who implements',
    about: 'One in each line, the first that can: an agent, or agent:model.',
  },
  reviewers: {
    label: 'Who reviews',
    about: 'One in each line, the first that can: an agent, or agent:model.',
  },
  minutes: { label: 'Who writes the minutes', about: 'An agent that takes no side.', empty: 'nobody' },
  // Where and who.
  directory: { about: 'Where the work is: the absolute path of a repository, or of any directory.' },
  agent: { about: 'Who does the work.' },
  model: { about: 'Without one, what the agent’s settings say.' },
  template: { about: 'Guidelines of yours, with the agent and the model that go with them.', empty: 'none' },
  project: { about: 'A name. One that does not exist yet is made.' },
  'batch.project': { about: 'A name. Without one, the batch gets a project of its own.' },
  interactive: {
    label: 'Interactive',
    about: 'In a terminal, where you talk to the agent; the prompt may then be empty.',
  },
  title: { about: 'A short name for lists. Without one, made of what is asked for.' },
  fallback_agents: {
    label: 'Who takes over',
    about: 'One in each line, in this order, from an agent that is limited or unavailable.',
  },
  priority: { about: 'Who goes first where work waits.' },
  system_prompt: { label: 'Standing instructions', about: 'What the agent is told besides.' },
  env: { label: 'Variables', about: 'For agents and commands. They are kept out of the database.' },
  base: { label: 'Starts from', about: 'A branch or a commit. Without one, the branch that is checked out.' },
  deliver: { label: 'Once it is completed', about: '' },
  prove: {
    label: 'Prove the checks',
    about: 'Whether checks that passed are made again on garbled files, to see that they look at them.',
    empty: 'as in the settings',
  },
  continue_from: {
    label: 'Knows the work of',
    about: 'The id of a task, whose prompt and result the agent is told.',
  },
  deps_policy: { label: 'If what it waits for fails', about: '' },
  depends_on: { label: 'After', about: 'Ids of tasks, one in each line: it starts when they have ended.' },
  tools: {
    label: 'Tools',
    about: 'The only tools that the agent may use, by its own names for them; one in each line.',
  },
  read_only: {
    label: 'Only look',
    about: 'It reports and changes nothing; what it changes all the same is thrown away.',
  },
  coordinate: {
    label: 'May hand work on',
    about: 'The agent gets Kapelle’s own tools, to start agents of its own.',
  },
  browser: { about: 'The agent gets a browser, and the application that the setting browser.serve starts.' },
  tags: { about: 'One in each line.' },
  workspace: { label: 'Workspace', empty: 'a worktree in a git repository, else in place' },
  context: { label: 'Context', about: 'Facts that the agent is told, one in each line.' },
  mcp: {
    label: 'MCP servers',
    about: 'Servers that the agent may use, one in each line: a command or an https URL.',
  },
  fork_session: { label: 'Fork the conversation' },
  'retry.policy': { label: 'After a failure' },
  'batch.options': {
    label: 'Options of the pattern',
    about: 'As JSON; for debate, its sides: {"sides": [{"agent": "claude"}, {"agent": "codex"}]}',
  },
  'batch.pattern': {
    label: 'Done by',
    about: 'The pattern that does each item, such as debate. Without one, each is a task.',
  },
  'batch.merge': {
    label: 'Bring it together',
    about: 'What passed comes into one branch; else each item stays on its own.',
  },
  at_once: { label: 'At once', about: 'How many items are under way at a time.', ...LIMIT },
  'debate.verify': { label: 'Let the other side look', about: 'At what was done, and have it refined once.' },
  'tracks.verify': { label: 'Have it verified', about: 'By an agent that looks at every step of a feature.' },
  ask: { label: 'May ask you', about: 'What only a person can decide.' },
  confirm: {
    label: 'Confirm the criteria',
    about: 'You are asked whether what the planner proposes is right.',
  },
  wait: { label: 'Wait for you', about: 'Where it is blocked; else it fails there.' },
  limits: {
    label: 'Limits of phases',
    about: 'One in each line, such as implement:turns=40,usd=2,minutes=30.',
  },
  instructions: { label: 'File of instructions', about: 'What all follow, if it exists.' },
  progress_file: { label: 'File of progress', about: 'Gets a line about each feature that has ended.' },
  // Limits.
  budget_usd: {
    label: 'Budget',
    about: 'In dollars, for all attempts together.',
    wrong: 'An amount in dollars, such as 5.',
  },
  timeout_s: { label: 'Time', about: 'For one attempt: 90s, 10m or 2h.' },
  task_timeout_s: { label: 'Time for an attempt', about: 'The longest that one attempt of a task may take.' },
  max_seconds: {
    label: 'Time',
    about: 'For all of it: 90m or 3h. While it is paused or waits for you, it does not count.',
  },
  max_turns: { label: 'Turns', about: 'Of one attempt.', ...LIMIT },
  max_agent_calls: { label: 'Attempts', about: 'Of all agents together, in runs inside it too.', ...LIMIT },
  max_iterations: { label: 'Iterations', about: 'At most.', ...LIMIT },
  max_failures: { label: 'Failures in a row', about: 'So many iterations may fail; 0 for any number.' },
  max_workers: { label: 'At once', about: 'How many parts are worked on at the same time.' },
  cooldown_s: { label: 'Pause', about: 'Between iterations.' },
  retry_delay_s: { label: 'Pause', about: 'Before a phase that broke down is tried again.' },
  convergence: { label: 'Ends when nothing changes', about: 'After so many iterations; 0 for never.' },
  checkpoint: {
    label: 'Go on in one conversation',
    about: 'From one iteration to the next; else each begins anew.',
  },
};

/** What the values of a choice mean. */
const CHOICES: Record<string, Record<string, string>> = {
  direction: { minimize: 'smaller is better', maximize: 'larger is better' },
  deliver: { branch: 'it stays on its branch', merge: 'it is merged', pr: 'it becomes a pull request' },
  deps_policy: { cancel: 'it is cancelled', run: 'it begins all the same' },
  priority: { P0: 'P0, before the others', P1: 'P1', P2: 'P2, after the others' },
  workspaces: { shared: 'one worktree for all steps', each: 'one worktree for each step' },
  workspace: { worktree: 'in a git worktree of its own', in_place: 'right in the directory' },
  'retry.policy': {
    none: 'it is not tried again',
    same: 'it is tried again',
    analyze: 'its failure is analyzed, then it is tried again',
  },
  actor: { one: 'side one', two: 'side two' },
};

export const wordsOf = (pattern: string, name: string): Words => ({
  ...WORDS[name],
  ...WORDS[`${pattern}.${name}`],
});

export const choiceWords = (name: string, choice: string): string => CHOICES[name]?.[choice] ?? choice;
