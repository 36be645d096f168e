import type { FieldError } from '../../api/client';
import { capital, sentence } from '../../model/format';
import { TIME, textsOf } from './words';

/** A field of a spec, as its JSON schema describes it. */
export interface Schema {
  type?: string;
  description?: string;
  title?: string;
  default?: unknown;
  enum?: string[];
  anyOf?: Schema[];
  items?: Schema;
  $ref?: string;
  minimum?: number;
  exclusiveMinimum?: number;
  maximum?: number;
  properties?: Record<string, Schema>;
  required?: string[];
  $defs?: Record<string, Schema>;
  'x-cli'?: {
    names?: string[];
    kind?: string;
    argument?: string;
    complete?: string;
    hidden?: boolean;
    /** The fields of a nested object are options of their own; this is said of some of them. */
    group?: Record<string, unknown>;
    /** Options that stand for one value of it. */
    flags?: [option: string, value: unknown, about: string][];
  };
}

export interface Field {
  name: string;
  label: string;
  about: string;
  option: string;
  input:
    | 'text'
    | 'long'
    | 'number'
    | 'truth'
    | 'choice'
    | 'lines'
    | 'duration'
    | 'agent'
    | 'pairs'
    | 'servers'
    | 'json'
    | 'template'
    | 'list';
  choices: string[];
  required: boolean;
  otherwise: string;
  /** What an empty choice means. */
  empty: string;
  /** What is to be typed instead of what cannot be read. */
  wrong: string;
  /** Options that stand for one value of it. */
  flags: Map<string, string>;
}

export type Typed = Record<string, string>;

const PAIRS = new Set(['env', 'tracks', 'context']);
const PROMPTS = new Set(['prompt', 'goal', 'task']);
const LEFT_OUT = new Set(['shell', 'eval_schema']);

/** The fields that a form can ask for. */
export function fieldsOf(pattern: string, schema: Schema, defs: Record<string, Schema>): Field[] {
  return Object.entries(schema.properties ?? {})
    .filter(([name, field]) => !LEFT_OUT.has(name) && isAsked(field))
    .flatMap(([name, field]) => partsOf(name, field, defs))
    .map(([name, field]) => fieldOf(pattern, name, field, schema, defs))
    .filter((field) => field !== null);
}

/** Whether a person may choose: what is hidden as an option may have options for its values. */
const isAsked = ({ 'x-cli': cli }: Schema): boolean => !cli?.hidden || (cli.flags?.length ?? 0) > 0;

/** A field by its name, or those of a nested object by theirs, such as retry.policy. */
function partsOf(name: string, field: Schema, defs: Record<string, Schema>): [string, Schema][] {
  if (!field['x-cli']?.group) return [[name, field]];
  const parts = Object.entries(plain(field, defs).properties ?? {});
  return parts.map(([part, schema]) => [`${name}.${part}`, schema]);
}

const lastOf = (name: string): string => name.split('.').at(-1) ?? name;

function fieldOf(
  pattern: string,
  name: string,
  field: Schema,
  owner: Schema,
  defs: Record<string, Schema>,
): Field | null {
  const input = inputOf(name, field, defs);
  if (!input) return null;
  const cli = field['x-cli'];
  const words = textsOf(pattern, name);
  return {
    name,
    label:
      words.label ??
      capital(
        lastOf(name)
          .replace(/_(s|usd)$/, '')
          .replaceAll('_', ' '),
      ),
    about: words.about ?? sentence(capital(field.description ?? '')),
    option: optionOf(cli, name),
    input,
    choices: choicesOf(field, defs),
    required: owner.required?.includes(name) ?? false,
    otherwise: shown(field.default),
    empty: words.empty ?? '',
    wrong: words.wrong ?? (input === 'duration' ? TIME : 'A number.'),
    flags: new Map(cli?.flags?.map(([option, value]) => [String(value), option])),
  };
}

/** The option of a field on the command line; empty for an argument. */
function optionOf(cli: Schema['x-cli'], name: string): string {
  if (cli?.hidden) return (cli.flags ?? []).map(([flag]) => flag).join(' ');
  if (cli?.argument) return '';
  const long = cli?.names?.find((option) => option.startsWith('--'));
  return long ?? cli?.names?.[0] ?? `--${lastOf(name).replace(/_s$/, '').replaceAll('_', '-')}`;
}

function plain(field: Schema, defs: Record<string, Schema>): Schema {
  const named = field.$ref ? defs[field.$ref.split('/').at(-1) ?? ''] : undefined;
  const some = (named ?? field).anyOf?.find((option) => option.type !== 'null');
  return some ? plain(some, defs) : (named ?? field);
}

const choicesOf = (field: Schema, defs: Record<string, Schema>): string[] => plain(field, defs).enum ?? [];

function inputOf(name: string, field: Schema, defs: Record<string, Schema>): Field['input'] | null {
  const { type, enum: choices } = plain(field, defs);
  if (PROMPTS.has(name)) return 'long';
  if (choices) return 'choice';
  if (name === 'template') return 'template';
  if (name === 'saved') return 'list';
  if (field['x-cli']?.complete === 'agents' && type === 'string') return 'agent';
  if (field['x-cli']?.kind === 'duration') return 'duration';
  if (type === 'boolean') return 'truth';
  if (type === 'integer' || type === 'number') return 'number';
  if (type === 'array') return 'lines';
  if (PAIRS.has(name)) return 'pairs';
  if (name === 'mcp') return 'servers';
  if (name === 'options') return 'json';
  return type === 'string' ? 'text' : null;
}

function shown(value: unknown): string {
  if (value === null || value === undefined) return '';
  return Array.isArray(value) || typeof value === 'object' ? '' : String(value);
}

const UNITS: Record<string, number> = { s: 1, m: 60, min: 60, h: 3600, d: 86400 };

const linesOf = (text: string): string[] => text.split('\n').filter((line) => line.trim());

/** A duration in seconds; the text itself where it is none. */
export function secondsOf(text: string): number | string {
  const [, amount, unit = 's'] = /^([\d.]+)\s*(s|m|min|h|d)?$/.exec(text) ?? [];
  return amount ? Number(amount) * (UNITS[unit] ?? 1) : text;
}

const pairsOf = (text: string): [string, string][] =>
  linesOf(text).map((line) => [line.split('=')[0] ?? '', line.split('=').slice(1).join('=')]);

/** An MCP server as it is typed: an address, or a command with its words. */
function serverOf(value: string): { url: string } | { command: string[] } {
  if (/^https?:/.test(value)) return { url: value };
  const words = value.match(/"[^"]*"|'[^']*'|\S+/g) ?? [];
  return { command: words.map((word) => word.replace(/^(["'])(.*)\1$/, '$2')) };
}

/** What was typed, as the daemon wants it; undefined for nothing. */
export function given(field: Field, typed: string): unknown {
  const text = typed.trim();
  if (!text) return undefined;
  switch (field.input) {
    case 'truth':
      return text === 'true';
    case 'number': {
      const number = Number(text.replace(/^\$/, ''));
      return Number.isNaN(number) ? text : number;
    }
    case 'duration':
      return secondsOf(text);
    case 'lines':
      return linesOf(text);
    case 'pairs':
      return Object.fromEntries(pairsOf(text));
    case 'servers':
      return Object.fromEntries(pairsOf(text).map(([name, value]) => [name, serverOf(value)]));
    case 'json':
      try {
        return JSON.parse(text);
      } catch {
        return text;
      }
    default:
      return typed;
  }
}

const quoted = (text: string): string =>
  /^[\w./:=@%+-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`;

/** The words by which a command is told what was typed into a field. */
function optionsOf(field: Field, text: string): string[] {
  const flag = field.flags.get(text);
  if (flag) return [flag];
  if (field.input === 'truth') return [text === 'true' ? field.option : field.option.replace(/^--/, '--no-')];
  const values = ['lines', 'pairs', 'servers'].includes(field.input)
    ? linesOf(text)
    : [field.input === 'number' ? String(given(field, text)) : text];
  return values.map((value) => (field.option ? `${field.option} ${quoted(value)}` : quoted(value)));
}

/** The same as a command. */
export function commandOf(pattern: string, fields: Field[], typed: Typed, when: string): string {
  const words = [`kapelle${when}`, when ? '--' : '', pattern === 'task' ? 'run' : pattern];
  const told = (some: Field[]) =>
    some.flatMap((field) => {
      const text = typed[field.name]?.trim();
      return text ? optionsOf(field, text) : [];
    });
  const plain = told(fields.filter(({ option }) => !option));
  const options = told(fields.filter(({ option }) => option));
  // What looks like an option and is none stands behind all of them.
  const isLike = plain.some((word) => /^'?-/.test(word));
  words.push(...(isLike ? [...options, '--', ...plain] : [...plain, ...options]));
  return words.filter(Boolean).join(' ');
}

/** The errors for fields that are required and empty. */
const REQUIRED: Record<string, string> = {
  prompt: 'Enter a prompt.',
  goal: 'Enter the goal.',
  task: 'Enter the task.',
  directory: 'Enter an absolute path.',
};

/** The problems that the form can see without the daemon, by field. */
export function wrongsOf(pattern: string, fields: Field[], typed: Typed): Record<string, string> {
  const problems: Record<string, string> = {};
  const has = (name: string) => !!typed[name]?.trim();
  for (const field of fields) {
    const value = given(field, typed[field.name] ?? '');
    if (field.required && value === undefined) problems[field.name] = REQUIRED[field.name] ?? 'Required.';
    const isNumber = field.input === 'number' || field.input === 'duration';
    if (isNumber && typeof value === 'string') problems[field.name] = field.wrong;
  }
  if (has('directory') && !typed.directory?.startsWith('/'))
    problems.directory = 'An absolute path, such as /home/you/project.';
  if (has('interactive')) delete problems.prompt;
  if (pattern === 'pipeline' && linesOf(typed.steps ?? '').length < 2)
    problems.steps = 'Enter at least two steps, one per line.';
  if (pattern === 'batch' && !has('items') && !has('saved'))
    problems.items = 'Enter at least one item, or choose a saved list.';
  if (pattern === 'loop') {
    if (!has('prompt') && !has('steps')) problems.prompt = REQUIRED.prompt ?? '';
    const by = untilOf(typed);
    if (by === 'commands' && !has('until'))
      problems.until = 'Enter a command that passes when the work is done.';
    if (by === 'number' && !has('eval')) problems.eval = 'Enter a command that prints the score.';
    if (by === 'number' && !has('direction')) problems.direction = 'Choose a direction.';
  }
  return problems;
}

export type Until = 'commands' | 'number' | 'judge';

/** What decides when a loop is done. */
export const untilOf = (typed: Typed): Until => (typed['until.by'] as Until | undefined) || 'commands';

/** The fields that each way of deciding has. */
export const UNTIL: Record<Until, string[]> = {
  commands: ['until'],
  number: ['eval', 'direction', 'target'],
  judge: ['eval_prompt', 'judge', 'judge_model'],
};

/** What was typed, without what was typed for another choice than the one that is made. */
export function chosenOf(pattern: string, typed: Typed): Typed {
  if (pattern !== 'loop') return typed;
  const by = untilOf(typed);
  const others = Object.values(UNTIL).flat();
  const kept = Object.entries(typed).filter(([name]) => !others.includes(name) || UNTIL[by].includes(name));
  return { ...Object.fromEntries(kept), ...(by === 'judge' ? { eval_mode: 'agent' } : {}) };
}

/** What a refusal says about each field, with the words of the form. */
export function problemsOf(
  error: { code: string; hint: string | null; fields: FieldError[] },
  fields: { name: string; label?: string }[],
  typed: Typed,
): Record<string, string> {
  const problems: Record<string, string> = {};
  const known = new Map(fields.map(({ name, label }) => [name, label ?? name]));
  for (const problem of error.fields) {
    const place = [...namesIn(problem, typed), ...problem.names].find((name) => known.has(name));
    if (!place) continue;
    const words =
      place === 'agent' && !typed.agent && error.code === 'agent_not_found'
        ? `Choose an agent: no default is set. ${error.hint ?? ''}`
        : inWords(problem, place, known);
    problems[place] = problems[place] ? `${problems[place]} ${words}` : words;
  }
  return problems;
}

/** What the field that a problem is about may be called in the form. */
function namesIn({ path }: FieldError, typed: Typed): string[] {
  const [name = '', part = ''] = path[0] === 'spec' ? path.slice(1) : path;
  const after = name === 'depends_on' && typed['when.after'] ? ['when.after'] : [];
  return [...after, `${name}.${part}`, String(name)];
}

/** A problem with the labels of fields instead of their names. */
function inWords(problem: FieldError, place: string, known: Map<string, string>): string {
  const label = known.get(place);
  const item = problem.path.find((part) => typeof part === 'number');
  const line = item === undefined ? '' : `, line ${Number(item) + 1},`;
  const text = problem.kind === 'value' && label ? `“${label}”${line} ${problem.message}` : problem.message;
  const quoted = problem.names.reduce(
    (all, name) => all.replaceAll(`\`${name}\``, `“${known.get(name) ?? name}”`),
    text,
  );
  return sentence(capital(quoted));
}
