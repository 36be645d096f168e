import { useQuery } from '@tanstack/react-query';
import { useNavigate, useSearch } from '@tanstack/react-router';
import {
  type FormEvent,
  type KeyboardEvent,
  type ReactNode,
  useEffect,
  useMemo,
  useRef,
  useState,
} from 'react';
import { ApiError, api, ask, type Schedule, type Work } from '../../api/client';
import { useTemplates } from '../../api/knowledge';
import { useAction, useActive, useAgents, useEnded, usePatterns } from '../../api/queries';
import { Button, Loading, Problem } from '../../parts/controls';
import { Icon } from '../../parts/icon';
import { View as Frame } from '../../shell/layout';
import { usePreference } from '../../shell/preferences';
import { Chosen } from '../knowledge/templates';
import { FormField } from './form_field';
import { happensOf } from './happens';
import { Kind } from './kind';
import { commandOf, type Field, fieldsOf, given, problemsOf, type Schema } from './schema';
import { triggerOf, triggerWords, WhenGroup, whenOf } from './when';

/** What a pattern is about, though it need not be typed. */
const MAIN = ['features', 'tracks'];
const WHERE = ['template', 'directory', 'agent', 'model', 'project', 'interactive'];
const LIMITS = ['budget_usd', 'timeout_s', 'max_seconds', 'max_turns', 'max_agent_calls', 'max_iterations'];
const PROOF = [
  'checks',
  'until',
  'eval',
  'direction',
  'target',
  'verify',
  'steps',
  'candidates',
  'count',
  'success_criteria',
];

const KEYS: Record<string, string> = { at: 'when.at', cron: 'when.cron', every_s: 'when.every' };
const WHEN = [...Object.keys(KEYS), 'when.after'].map((name) => ({ name }));

/** The task's schema, which is in the REST document and not among the patterns. */
const useTaskSchema = () =>
  useQuery({
    queryKey: ['document'],
    queryFn: async () => {
      const response = await fetch('/api/v1/openapi.json');
      const document = (await response.json()) as { components: { schemas: Record<string, Schema> } };
      return document.components.schemas;
    },
  });

export function View() {
  const { pattern = 'task' } = useSearch({ from: '/inside/new' });
  const navigate = useNavigate({ from: '/new' });
  const patterns = usePatterns();
  const document = useTaskSchema();
  const chosen = patterns.data?.find(({ name }) => name === pattern);
  const own = chosen?.spec_schema as Schema | undefined;
  const schema = pattern === 'task' ? document.data?.TaskSpec : own;
  const defs = pattern === 'task' ? document.data : own?.$defs;
  const kinds = [
    'task',
    ...(patterns.data ?? []).filter(({ name }) => !name.startsWith('(')).map(({ name }) => name),
  ];
  return (
    <Frame title="New">
      <div className="page">
        <Problem error={patterns.error ?? document.error} />
        {schema && defs ? (
          <Form key={pattern} pattern={pattern} schema={schema} defs={defs}>
            <fieldset className="kinds" aria-label="What to start">
              {kinds.map((name) => (
                <Kind
                  key={name}
                  name={name}
                  about={patterns.data?.find((one) => one.name === name)?.summary ?? 'One agent, once'}
                  chosen={name === pattern}
                  choose={() => navigate({ search: { pattern: name }, replace: true })}
                />
              ))}
            </fieldset>
          </Form>
        ) : (
          <Loading lines={8} />
        )}
      </div>
    </Frame>
  );
}

type Typed = Record<string, string>;

function useDraft(pattern: string): [Typed, (name: string, value: string) => void, () => void] {
  const [kept, keep] = usePreference(`draft.${pattern}`, '{}');
  const typed = useMemo(() => JSON.parse(kept) as Typed, [kept]);
  return [typed, (name, value) => keep(JSON.stringify({ ...typed, [name]: value })), () => keep('{}')];
}

/** Where work was done lately, the latest first. */
function useDirectories(): string[] {
  const work = [...useActive().work, ...useEnded().work].sort((a, b) =>
    b.created_at.localeCompare(a.created_at),
  );
  return [...new Set(work.map((item) => item.repository ?? item.directory))];
}

interface FormProps {
  pattern: string;
  schema: Schema;
  defs: Record<string, Schema>;
  children: ReactNode;
}

function Form({ pattern, schema, defs, children }: FormProps) {
  const fields = useMemo(() => fieldsOf(schema, defs), [schema, defs]);
  const [typed, type, clear] = useDraft(pattern);
  const directories = useDirectories();
  const template = useTemplates().data?.find(({ name }) => name === typed.template);
  const navigate = useNavigate();
  const start = useAction(async (): Promise<Work | Schedule> => {
    const values = fields.map((field) => [field.name, given(field, typed[field.name] ?? '')] as const);
    const spec: Record<string, unknown> = Object.fromEntries(
      values.filter(([, value]) => value !== undefined),
    );
    spec.directory ??= template?.directory ?? directories[0];
    // In a terminal the first words may be typed there.
    if (spec.interactive) spec.prompt ??= '';
    const trigger = triggerOf(typed);
    if (trigger) {
      const schedule = { kind: pattern, spec, title: spec.title, ...trigger };
      return ask(api.POST('/api/v1/schedules', { body: schedule as never }));
    }
    if (whenOf(typed) === 'after' && typed['when.after']) spec.depends_on = [typed['when.after']];
    const body = spec as never;
    return pattern === 'task'
      ? ask(api.POST('/api/v1/tasks', { body }))
      : ask(api.POST('/api/v1/runs', { body: { pattern, spec } }));
  });
  const [sent, keepSent] = useState(typed);
  const send = () => {
    keepSent(typed);
    start.mutate(undefined, {
      onSuccess: (work) => {
        clear();
        navigate({
          to: `/${'cron' in work ? 'schedules' : 'pattern' in work ? 'runs' : 'tasks'}/${work.id}`,
        });
      },
    });
  };
  const submit = (event: FormEvent) => {
    event.preventDefault();
    send();
  };
  const press = (event: KeyboardEvent) => {
    if (event.key === 'Enter' && (event.metaKey || event.ctrlKey)) send();
    if (event.key === 'Escape') window.history.back();
  };
  const all: Record<string, string> =
    start.error instanceof ApiError ? problemsOf(start.error.message, [...fields, ...WHEN], sent) : {};
  const problems = { ...all };
  // What was typed anew is not what was refused.
  for (const name of Object.keys(problems)) {
    const key = KEYS[name] ?? name;
    if ((typed[key] ?? '') !== (sent[key] ?? '')) delete problems[name];
  }
  const form = useRef<HTMLFormElement>(null);
  useEffect(() => {
    if (start.error) form.current?.querySelector<HTMLElement>('[aria-invalid=true]')?.focus();
  }, [start.error]);
  const unplaced = start.error && Object.keys(all).length === 0 ? start.error : null;
  const named = (names: string[]) =>
    names.map((name) => fields.find((field) => field.name === name)).filter((field) => field !== undefined);
  const placed = [...WHERE, ...LIMITS, ...PROOF];
  const main = fields.filter(
    (field) =>
      field.input === 'long' || MAIN.includes(field.name) || (field.required && !placed.includes(field.name)),
  );
  const rest = fields.filter((field) => !main.includes(field) && !placed.includes(field.name));
  const show = (field: Field) => (
    <FormField
      key={field.name}
      field={field}
      typed={typed[field.name] ?? ''}
      problem={problems[field.name]}
      change={(value) => type(field.name, value)}
      directories={directories}
    />
  );
  const changed = rest.filter((field) => typed[field.name]).length;
  return (
    <form ref={form} className="form" onSubmit={submit} onKeyDown={press}>
      <div>
        {children}
        <div className="fs stack">{main.map(show)}</div>
        <Group title="What it must hold" fields={named(PROOF)} show={show} columns="grid2" />
        <Group title="Where and who" fields={named(WHERE)} show={show} columns="grid2" />
        <Group title="Limits" fields={named(LIMITS)} show={show} columns="grid3" />
        <WhenGroup typed={typed} type={type} problems={problems} waits={pattern === 'task'} />
        <details className="fs more" open={rest.some((field) => problems[field.name])}>
          <summary>
            <Icon name="right" className="chev" />
            {rest.length} more options{' '}
            <span className="faint">{changed ? `${changed} changed` : 'all at their defaults'}</span>
          </summary>
          <div className="grid2 mt-3">{rest.map(show)}</div>
        </details>
        <Problem error={unplaced} />
        <div className="submit">
          <Button type="submit" look="primary" hotkey="⌘↵" disabled={start.isPending}>
            {start.isPending
              ? 'Starting'
              : `${triggerOf(typed) ? 'Schedule' : 'Start'} the ${nounOf(pattern)}`}
          </Button>
          <Button look="quiet" onClick={clear}>
            Clear
          </Button>
          {Object.keys(problems).length > 0 && (
            <span className="end c-bad">
              {Object.keys(problems).length === 1 ? '1 thing' : `${Object.keys(problems).length} things`} to
              mend
            </span>
          )}
        </div>
      </div>
      <Aside pattern={pattern} fields={fields} typed={typed} />
    </form>
  );
}

const nounOf = (pattern: string): string => (pattern === 'orchestrate' ? 'orchestration' : pattern);

function Group(props: {
  title: string;
  fields: Field[];
  show: (field: Field) => React.ReactNode;
  columns: string;
}) {
  if (props.fields.length === 0) return null;
  return (
    <section className="fs">
      <h2>{props.title}</h2>
      <div className={props.columns}>{props.fields.map(props.show)}</div>
    </section>
  );
}

function Aside({ pattern, fields, typed }: { pattern: string; fields: Field[]; typed: Typed }) {
  const command = commandOf(pattern, fields, typed, triggerWords(typed));
  const agents = useAgents().data ?? [];
  const agent = typed.agent || agents.find(({ default: usual }) => usual)?.name;
  const happens = happensOf(pattern, typed, agent);
  if (triggerOf(typed))
    happens.unshift('It waits until its time; Schedules shows when that is, and what came of it.');
  return (
    <aside className="aside stack">
      <section className="panel box">
        <header>
          <h2>What will happen</h2>
        </header>
        <ol>
          {happens.map((text) => (
            <li key={text}>{text}</li>
          ))}
        </ol>
      </section>
      <section className="panel box">
        <header>
          <h2>The same, typed</h2>
          <span className="end">
            <Button small look="quiet" onClick={() => navigator.clipboard.writeText(command)}>
              <Icon name="copy" />
              Copy
            </Button>
          </span>
        </header>
        <p className="cmd">{command}</p>
      </section>
      {typed.template && <Chosen name={typed.template} />}
    </aside>
  );
}
