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
  input: 'text' | 'long' | 'number' | 'truth' | 'choice' | 'lines' | 'duration' | 'agent' | 'template';
  choices: string[];
  required: boolean;
  otherwise: string;
}

const PROMPTS = new Set(['prompt', 'goal']);
const LEFT_OUT = new Set(['shell', 'env', 'mcp', 'context', 'retry', 'eval_schema', 'fork_session']);

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
  if (name === 'agent' || name === 'judge' || field['x-cli']?.kind === 'agent') return 'agent';
  if (field['x-cli']?.kind === 'duration') return 'duration';
  if (type === 'boolean') return 'truth';
  if (type === 'integer' || type === 'number') return 'number';
  if (type === 'array') return 'lines';
  return type === 'string' ? 'text' : null;
}

function shown(value: unknown): string {
  if (value === null || value === undefined) return '';
  return Array.isArray(value) || typeof value === 'object' ? '' : String(value);
}

const UNITS: Record<string, number> = { s: 1, m: 60, min: 60, h: 3600, d: 86400 };

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
    case 'duration': {
      const [, amount, unit = 's'] = /^([\d.]+)\s*(s|m|min|h|d)?$/.exec(text) ?? [];
      return amount ? Number(amount) * (UNITS[unit] ?? 1) : text;
    }
    case 'lines': {
      const lines = text.split('\n').filter((line) => line.trim());
      return field.name === 'steps' ? lines.map((prompt) => ({ prompt })) : lines;
    }
    default:
      return typed;
  }
}

/** The same as a command. */
export function commandOf(pattern: string, fields: Field[], typed: Record<string, string>): string {
  const words = ['kapelle', pattern === 'task' ? 'run' : pattern];
  const quoted = (text: string) =>
    /^[\w./:=@%+-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`;
  const long = fields.find((field) => field.input === 'long');
  if (long && typed[long.name]) words.push(quoted(typed[long.name] ?? ''));
  for (const field of fields) {
    const text = typed[field.name]?.trim();
    if (!text || field === long || field.name === 'directory') continue;
    if (field.input === 'truth') words.push(text === 'true' ? field.option : '');
    else
      for (const line of field.input === 'lines' ? text.split('\n') : [text])
        words.push(`${field.option} ${quoted(line)}`);
  }
  return words.filter(Boolean).join(' ');
}

/** What a refusal says about each field. */
export function problemsOf(message: string, fields: Field[]): Record<string, string> {
  const found: Record<string, string> = {};
  for (const part of message.split('; ')) {
    const place = /^(?:spec\.)?`?([a-z_]+)/.exec(part)?.[1] ?? '';
    const field = fields.find(({ name }) => name === place);
    if (field) found[field.name] = part;
  }
  return found;
}
