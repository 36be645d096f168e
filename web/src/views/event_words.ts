import type { HistoryEvent } from '../api/history';
import { capital, moment, shortCommit, shortId, span } from '../model/format';

type Data = Record<string, unknown>;
/** The title and the details of an event. */
type Words = [what: string, about: string];

const text = (value: unknown): string => (typeof value === 'string' ? value : '');
const among = (...parts: string[]): string => parts.filter(Boolean).join(', ');

/** The text of an agent in one line, without data in code blocks. */
const said = (value: unknown): string => {
  const [prose = '', block] = text(value).split('```');
  return prose.trim().replace(/\s+/g, ' ') || (block === undefined ? '' : 'an answer as data');
};

const why = (data: Data): string => text(data.reason) || text(data.why);

const attempt =
  (what: string) =>
  (data: Data): Words => [`Attempt ${data.number ?? ''} ${what}`, among(text(data.agent), why(data))];

const check =
  (what: string) =>
  (data: Data): Words => [
    `Check ${what}`,
    among(
      text(data.name),
      typeof data.duration_s === 'number' && data.duration_s >= 0.05 ? span(data.duration_s) : '',
      data.exit_code ? `exit ${data.exit_code}` : '',
    ),
  ];

const plain =
  (what: string) =>
  (data: Data): Words => [what, why(data)];
const named =
  (what: string) =>
  (data: Data): Words => [what, among(text(data.name), text(data.key), text(data.text))];

function marked(data: Data): Words {
  if ('flagged_at' in data) return [data.flagged_at ? 'You flagged it' : 'You removed the flag', ''];
  if ('snoozed_until' in data)
    return data.snoozed_until
      ? ['You snoozed it', `until ${moment(text(data.snoozed_until))}`]
      : ['You ended the snooze', ''];
  return ['You saw the result', ''];
}

function progress(data: Data): Words {
  const at = (name: string, most: unknown) =>
    typeof data[name] === 'number' ? `${name} ${data[name]}${most ? ` of ${most}` : ''}` : '';
  const best = typeof data.best === 'number' ? `best ${data.best}` : '';
  const places = [at('iteration', null), at('cycle', data.cycles), at('step', data.steps), at('round', null)];
  return ['Progress', among(text(data.phase), ...places, best, text(data.blocked))];
}

const merged = (data: Data): Words => [
  `Merged into ${text(data.base) || 'its base'}`,
  shortCommit(text(data.commit)),
];
const done = (data: Data): Words => [
  data.verified ? 'Completed and verified' : 'Completed',
  why(data) || said(data.text),
];

const WORK: Record<string, (data: Data) => Words> = {
  created: () => ['Created', ''],
  queued: plain('Queued'),
  blocked: plain('Waiting for other work'),
  running: plain('Started'),
  waiting: (data) => [data.waiting_for === 'rate_limit' ? 'Waiting for a rate limit' : 'Asks you', why(data)],
  completed: done,
  failed: (data) => ['Failed', why(data) || said(data.text)],
  cancelled: plain('Cancelled'),
  stopping: plain('Stopping'),
  pausing: plain('Pausing'),
  paused: plain('Paused'),
  resumed: plain('Resumed'),
  progress,
  merged,
  merge_refused: plain('Not merged'),
  merge_undone: plain('Merge undone'),
  archived: () => ['Archived', ''],
  marked,
  said: (data) => ['You wrote', said(data.text)],
  answered: (data) => ['Answered', text(data.answer)],
  reported: (data) => ['Message from the agent', said(data.text)],
  handed_in: (data) => [`The agent reported ${data.success === false ? 'a failure' : 'its result'}`, ''],
  checked: () => ['Checked again', ''],
};

const WORDS: Record<string, (data: Data) => Words> = {
  'attempt.started': attempt('started'),
  'attempt.completed': attempt('ended'),
  'attempt.failed': attempt('failed'),
  'attempt.cancelled': attempt('was cancelled'),
  'attempt.lost': attempt('was lost: outcome unknown'),
  'attempt.warning': (data) => ['Warning', said(data.text)],
  'attempt.diagnosed': (data) => ['Diagnosis', said(data.text)],
  'check.started': check('started'),
  'check.passed': check('passed'),
  'check.failed': check('failed'),
  'daemon.started': (data) => ['Daemon started', text(data.version) && `version ${data.version}`],
  'note.written': named('Note written'),
  'note.deleted': named('Note deleted'),
  'lock.taken': (data) => ['Lock taken', [data.paths].flat().map(text).join(', ')],
  'lock.released': (data) => ['Lock released', [data.paths].flat().map(text).join(', ')],
  'project.renamed': (data) => ['Project renamed', `${text(data.name)}, now ${text(data.to)}`],
  'repository.relocated': (data) => ['Repository moved', `${text(data.old)}, now ${text(data.new)}`],
};

const NOUNS: Record<string, string> = { firing: 'Schedule', learning: 'Learning', template: 'Template', project: 'Project', schedule: 'Schedule', account: 'Account' }; // biome-ignore format: a table

/** Verbs of events that the page names differently. */
const VERBS: Record<string, string> = { kept: 'saved', judged: 'reviewed' };

/** An event of the history as a title and details. */
export function eventWords({ kind, data }: HistoryEvent): Words {
  const [noun = '', verb = ''] = kind.split('.');
  const known = WORDS[kind] ?? (noun === 'task' || noun === 'run' ? WORK[verb] : undefined);
  const [what, about] = known?.(data) ?? [
    `${NOUNS[noun] ?? capital(noun)} ${VERBS[verb] ?? verb.replaceAll('_', ' ')}`,
    among(text(data.name), text(data.agent), why(data)),
  ];
  return [what, about.replace(/\b(task|run)_[0-9a-z]{26}\b/g, shortId)];
}
