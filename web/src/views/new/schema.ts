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
  'x-cli'?: { names?: string[]; metavar?: string; kind?: string; argument?: string; hidden?: boolean };
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
    | 'template';
  choices: string[];
  required: boolean;
  otherwise: string;
}

const PROMPTS = new Set(['prompt', 'goal']);
const AGENTS = new Set(['agent', 'judge', 'planner', 'worker', 'reviewer']);
const LEFT_OUT = new Set(['shell', 'mcp', 'context', 'retry', 'eval_schema', 'fork_session']);

/** The fields that a form can ask for. */
export function fieldsOf(schema: Schema, defs: Record<string, Schema>): Field[] {
  return Object.entries(schema.properties ?? {})
    .filter(([name, field]) => !LEFT_OUT.has(name) && !field['x-cli']?.hidden)
    .map(([name, field]) => fieldOf(name, field, schema, defs))
    .filter((field) => field !== null);
}

function fieldOf(name: string, field: Schema, owner: Schema, defs: Record<string, Schema>): Field | null {
  const input = inputOf(name, field, defs);
  if (!input) return null;
  const cli = field['x-cli'];
  const words = name.replace(/_(s|usd)$/, '').replaceAll('_', ' ');
  return {
    name,
    label: words.charAt(0).toUpperCase() + words.slice(1),
    about: field.description ?? '',
    option: cli?.argument
      ? ''
      : (cli?.names?.find((given) => given.startsWith('--')) ??
        cli?.names?.[0] ??
        `--${name.replaceAll('_', '-')}`),
    input,
    choices: choicesOf(field, defs),
    required: owner.required?.includes(name) ?? false,
    otherwise: shown(field.default),
  };
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
  if (AGENTS.has(name) || field['x-cli']?.kind === 'agent') return 'agent';
  if (field['x-cli']?.kind === 'duration') return 'duration';
  if (type === 'boolean') return 'truth';
  if (type === 'integer' || type === 'number') return 'number';
  if (type === 'array') return 'lines';
  if (name === 'env' || name === 'tracks') return 'pairs';
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
      return Object.fromEntries(
        linesOf(text).map((line) => [line.split('=')[0], line.split('=').slice(1).join('=')]),
      );
    default:
      return typed;
  }
}

/** The same as a command. */
export function commandOf(
  pattern: string,
  fields: Field[],
  typed: Record<string, string>,
  when: string,
): string {
  const words = [`kapelle${when}`, when ? '--' : '', pattern === 'task' ? 'run' : pattern];
  const quoted = (text: string) =>
    /^[\w./:=@%+-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`;
  const long = fields.find((field) => field.input === 'long');
  if (long && typed[long.name]) words.push(quoted(typed[long.name] ?? ''));
  for (const field of fields) {
    const text = typed[field.name]?.trim();
    if (!text || field === long || field.name === 'directory') continue;
    if (field.input === 'truth') words.push(text === 'true' ? field.option : '');
    else
      for (const line of field.input === 'lines' || field.input === 'pairs' ? linesOf(text) : [text])
        words.push(`${field.option} ${quoted(line)}`);
  }
  return words.filter(Boolean).join(' ');
}

/** What a refusal says about each field: by the names that it begins with or quotes, or by what was typed. */
export function problemsOf(
  message: string,
  fields: { name: string }[],
  typed: Record<string, string>,
): Record<string, string> {
  const found: Record<string, string> = {};
  const known = new Set(fields.map(({ name }) => name));
  for (const part of message
    .replace(/^[a-z-]+: (?=[a-z_`])/, (all) => (known.has(all.slice(0, -2)) ? all : ''))
    .split('; ')) {
    const first = /^(?:spec\.)?`?([a-z_]+)/.exec(part)?.[1] ?? '';
    const quoted = [...part.matchAll(/`([a-z_]+)`/g)].map(([, name = '']) => name);
    const place =
      [first, ...quoted].find((name) => known.has(name)) ??
      ECHOES.find((name) => known.has(name) && typed[name]?.trim() && part.includes(typed[name].trim()));
    if (place) found[place] = found[place] ? `${found[place]}; ${part}` : part;
  }
  return found;
}

/** Fields whose value stands in what is said against it. */
const ECHOES = ['directory', 'agent', 'model', 'base', 'when.after'];
