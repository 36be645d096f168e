import { useId } from 'react';
import { isRun } from '../../api/client';
import { useActive } from '../../api/queries';
import { Choices } from '../../parts/controls';
import { Glyph } from '../../parts/glyph';
import { Moment, Said } from '../../parts/text';
import { NextTimes, zone } from '../next_times';
import { secondsOf, type Typed } from './schema';
import { TIME } from './words';

type When = 'now' | 'at' | 'cron' | 'every' | 'after';

const CHOICES: { value: When; label: string }[] = [
  { value: 'now', label: 'Now' },
  { value: 'at', label: 'Once at…' },
  { value: 'cron', label: 'Recurring' },
  { value: 'every', label: 'Repeat after success' },
  { value: 'after', label: 'After another task' },
];

const RHYTHMS: [expression: string, words: string][] = [
  ['0 * * * *', 'every hour'],
  ['0 3 * * *', 'every night'],
  ['0 9 * * 1-5', 'on weekdays'],
  ['0 9 * * 1', 'on Mondays'],
];

export const whenOf = (typed: Typed): When => (typed.when as When | undefined) || 'now';

/** The trigger of a schedule; null for work that starts now. */
export function triggerOf(typed: Typed): Record<string, unknown> | null {
  const text = (typed[`when.${whenOf(typed)}`] ?? '').trim();
  switch (whenOf(typed)) {
    case 'at': {
      const at = new Date(text);
      return { at: Number.isNaN(at.getTime()) ? text : at.toISOString() };
    }
    case 'cron':
      return { cron: text, timezone: zone() };
    case 'every':
      return { every_s: secondsOf(text) };
    default:
      return null;
  }
}

/** The field of the form that a choice of when fills in. */
const FIELDS = { at: 'at', cron: 'cron', every: 'every_s', after: 'when.after' } as const;

/** The problems with the time at which the work is to start. */
export function wrongTimes(typed: Typed): Record<string, string> {
  const when = whenOf(typed);
  const text = (typed[`when.${when}`] ?? '').trim();
  if (when === 'at' && !text) return { at: 'Choose a date and time.' };
  if (when === 'cron' && !text) return { cron: 'Enter a schedule, or choose one of these.' };
  if (when === 'every' && typeof secondsOf(text) === 'string') return { every_s: TIME };
  if (when === 'after' && !text) return { 'when.after': 'Choose a task.' };
  return {};
}

/** The part of the equivalent command that creates the schedule. */
export function triggerWords(typed: Typed): string {
  const text = (typed[`when.${whenOf(typed)}`] ?? '').trim();
  switch (whenOf(typed)) {
    case 'at':
      return ` schedule create --at '${text}' --timezone ${zone()}`;
    case 'cron':
      return ` schedule create --cron '${text}' --timezone ${zone()}`;
    case 'every':
      return ` schedule create --every ${text}`;
    default:
      return '';
  }
}

interface Props {
  typed: Typed;
  type: (name: string, value: string) => void;
  problems: Record<string, string>;
  /** Tells whether the work can wait for other work: tasks can. */
  waits: boolean;
}

/** The choice of when the work starts, and how often. */
export function WhenGroup({ typed, type, problems, waits }: Props) {
  const when = whenOf(typed);
  const of = waits ? CHOICES : CHOICES.filter(({ value }) => value !== 'after');
  return (
    <section className="fs" aria-labelledby="h-when">
      <h2 id="h-when">When</h2>
      <Choices label="When" value={when} choose={(value) => type('when', value)} of={of} />
      {when !== 'now' && (
        <div className="grid2 mt-3">
          <One
            key={when}
            when={when}
            typed={typed[`when.${when}`] ?? ''}
            change={(value) => type(`when.${when}`, value)}
            problem={problems[FIELDS[when]]}
          />
        </div>
      )}
    </section>
  );
}

interface OneProps {
  when: Exclude<When, 'now'>;
  typed: string;
  change: (value: string) => void;
  problem: string | undefined;
}

const LABELS = {
  at: ['Time', '--at'],
  cron: ['Minute, hour, day, month, weekday', '--cron'],
  every: ['Pause', '--every'],
  after: ['After', '--after'],
} as const;

const PLACEHOLDERS: Partial<Record<When, string>> = { cron: '0 3 * * *', every: '30m' };

function One({ when, typed, change, problem }: OneProps) {
  const id = useId();
  const [label, option] = LABELS[when];
  const open = useActive().work.filter((work) => !isRun(work));
  const common = {
    id,
    value: typed,
    className: `field ${when === 'cron' ? 'mono' : ''}`,
    'aria-describedby': `${id}-about`,
    'aria-invalid': problem ? true : undefined,
    onChange: (event: { target: { value: string } }) => change(event.target.value),
  };
  return (
    <div className={`lab ${problem ? 'err' : ''}`}>
      <label htmlFor={id} className="name">
        {label}
        <span className="opt">{option}</span>
      </label>
      {when === 'after' ? (
        <select {...common}>
          <option value="">choose a task</option>
          {open.map((work) => (
            <option key={work.id} value={work.id}>
              {work.title}
            </option>
          ))}
        </select>
      ) : (
        <input
          {...common}
          type={when === 'at' ? 'datetime-local' : 'text'}
          placeholder={PLACEHOLDERS[when]}
        />
      )}
      {when === 'cron' && (
        <span className="rhythms">
          {RHYTHMS.map(([expression, words]) => (
            <button key={expression} type="button" className="chip" onClick={() => change(expression)}>
              {words}
            </button>
          ))}
        </span>
      )}
      <div id={`${id}-about`} className={problem ? 'errtext' : 'hint'}>
        {problem ? (
          <>
            <Glyph state="bad" />
            <Said>{problem}</Said>
          </>
        ) : (
          <About when={when} typed={typed} />
        )}
      </div>
    </div>
  );
}

function About({ when, typed }: { when: When; typed: string }) {
  if (when === 'every')
    return <>Starts now, then after this pause following each success: 90s, 30m, 2h, 1d.</>;
  if (when === 'after') return <>Starts when that task has completed.</>;
  if (when === 'at') {
    const at = new Date(typed);
    return Number.isNaN(at.getTime()) ? (
      <>Your time, {zone()}.</>
    ) : (
      <>
        <Moment at={at.toISOString()} /> your time, {zone()}.
      </>
    );
  }
  return <NextTimes cron={typed} />;
}
