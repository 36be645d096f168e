import type { HistoryEvent } from '../api/history';
import { capital, moment, shortCommit, shortId, span } from '../model/format';

type Data = Record<string, unknown>;
/** What happened, and what is to be said about it. */
type Words = [what: string, about: string];

const text = (value: unknown): string => (typeof value === 'string' ? value : '');
const among = (...parts: string[]): string => parts.filter(Boolean).join(', ');

/** What an agent wrote in one line, without the data that it put into a block of code. */
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
  if ('flagged_at' in data) return [data.flagged_at ? 'You flagged it' : 'You took the flag off', ''];
  if ('snoozed_until' in data)
    return data.snoozed_until
      ? ['You put it off', `until ${moment(text(data.snoozed_until))}`]
      : ['You took it back to what needs you', ''];
  return ['You looked at how it ended', ''];
}

function progress(data: Data): Words {
  const at = (name: string, most: unknown) =>
    typeof data[name] === 'number' ? `${name} ${data[name]}${most ? ` of ${most}` : ''}` : '';
  const best = typeof data.best === 'number' ? `best ${data.best}` : '';
  const places = [at('iteration', null), at('cycle', data.cycles), at('step', data.steps), at('round', null)];
  return ['Went on', among(text(data.phase), ...places, best, text(data.blocked))];
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
  created: () => ['Asked for', ''],
  queued: plain('Queued'),
  blocked: plain('Waits for other work'),
  running: plain('Began'),
  waiting: (data) => [data.waiting_for === 'rate_limit' ? 'Waits for a limit' : 'Asks you', why(data)],
  completed: done,
  failed: (data) => ['Failed', why(data) || said(data.text)],
  cancelled: plain('Cancelled'),
  stopping: plain('Is being stopped'),
  pausing: plain('Is being paused'),
  paused: plain('Paused'),
  resumed: plain('Goes on'),
  progress,
  merged,
  merge_refused: plain('Was not merged'),
  merge_undone: plain('Its merge was undone'),
  archived: () => ['Archived', ''],
  marked,
  said: (data) => ['You said', said(data.text)],
  answered: (data) => ['Was answered', text(data.answer)],
  reported: (data) => ['Its agent says', said(data.text)],
  handed_in: (data) => [`Its agent handed in ${data.success === false ? 'a failure' : 'its result'}`, ''],
  checked: () => ['Was checked once more', ''],
};

const WORDS: Record<string, (data: Data) => Words> = {
  'attempt.started': attempt('began'),
  'attempt.completed': attempt('ended'),
  'attempt.failed': attempt('failed'),
  'attempt.cancelled': attempt('was cancelled'),
  'attempt.lost': attempt('was lost: nobody saw the end'),
  'attempt.warning': (data) => ['Warning', said(data.text)],
  'attempt.diagnosed': (data) => ['Diagnosis', said(data.text)],
  'check.started': check('began'),
  'check.passed': check('passed'),
  'check.failed': check('failed'),
  'daemon.started': (data) => ['The daemon began', text(data.version) && `version ${data.version}`],
  'note.written': named('A note was written'),
  'note.deleted': named('A note was deleted'),
  'lock.taken': (data) => ['A lock was taken', [data.paths].flat().map(text).join(', ')],
  'lock.released': (data) => ['A lock was released', [data.paths].flat().map(text).join(', ')],
  'project.renamed': (data) => ['A project was renamed', `${text(data.name)}, now ${text(data.to)}`],
  'repository.relocated': (data) => ['A repository was moved', `${text(data.old)}, now ${text(data.new)}`],
};

const NOUNS: Record<string, string> = { firing: 'A schedule', learning: 'A learning', template: 'A template', project: 'A project', schedule: 'A schedule', account: 'An account' }; // biome-ignore format: a table

/** An event of the history in words: what happened, and what is to be said about it. */
export function eventWords({ kind, data }: HistoryEvent): Words {
  const [noun = '', verb = ''] = kind.split('.');
  const known = WORDS[kind] ?? (noun === 'task' || noun === 'run' ? WORK[verb] : undefined);
  const [what, about] = known?.(data) ?? [
    `${NOUNS[noun] ?? capital(noun)} was ${verb.replaceAll('_', ' ')}`,
    among(text(data.name), text(data.agent), why(data)),
  ];
  return [what, about.replace(/\b(task|run)_[0-9a-z]{26}\b/g, shortId)];
}
