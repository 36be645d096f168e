import { useQuery } from '@tanstack/react-query';
import { useNavigate, useSearch } from '@tanstack/react-router';
import {
  type FormEvent,
  type KeyboardEvent,
  type ReactNode,
  type RefObject,
  useEffect,
  useMemo,
  useRef,
  useState,
} from 'react';
import { type Agent, ApiError, api, ask, type Schedule, type Work } from '../../api/client';
import { useTemplates } from '../../api/knowledge';
import { useAction, useActive, useAgents, useEnded, usePatterns } from '../../api/queries';
import { counted } from '../../model/format';
import { Button, Choices, Loading, Problem } from '../../parts/controls';
import { Icon } from '../../parts/icon';
import { withCommand } from '../../shell/keys';
import { View as Frame } from '../../shell/layout';
import { usePreference, useScope } from '../../shell/preferences';
import { Chosen, SaveTemplate } from '../knowledge/templates';
import { FormField } from './form_field';
import { happensOf } from './happens';
import { Kind } from './kind';
import {
  chosenOf,
  commandOf,
  type Field,
  fieldsOf,
  given,
  problemsOf,
  type Schema,
  type Typed,
  UNTIL,
  type Until,
  untilOf,
  wrongsOf,
} from './schema';
import { triggerOf, triggerWords, WhenGroup, whenOf, wrongTimes } from './when';

/** Fields that are important for a pattern although they are optional. */
const MAIN = ['features', 'tracks', 'items', 'saved', 'action'];
const WHERE = ['directory', 'agent', 'model', 'template', 'project', 'interactive'];
const LIMITS = [
  'budget_usd',
  'timeout_s',
  'max_seconds',
  'max_turns',
  'max_agent_calls',
  'max_iterations',
  'at_once',
];
const PROOF = ['checks', 'until', 'eval', 'direction', 'target', 'verify', 'success_criteria'];
/** Fields for the participants of a pattern. */
const WHO = ['candidates', 'count', 'sides', 'implementers', 'reviewers'];
/** Of what is decided otherwise than by commands. */
const JUDGED = ['judge', 'eval_prompt', 'judge_model', 'eval_mode'];

const KEYS: Record<string, string> = { at: 'when.at', cron: 'when.cron', every_s: 'when.every' };
const WHEN = [...Object.keys(KEYS), 'when.after'].map((name) => ({ name }));

const UNTILS: { value: Until; label: string }[] = [
  { value: 'commands', label: 'Commands pass' },
  { value: 'number', label: 'Score improves' },
  { value: 'judge', label: 'Judge approves' },
];

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
  const { pattern = 'task', template, when } = useSearch({ from: '/inside/new' });
  const navigate = useNavigate({ from: '/new' });
  const hasFocused = useRef(false);
  const patterns = usePatterns();
  const document = useTaskSchema();
  const chosen = patterns.data?.find(({ name }) => name === pattern);
  const own = chosen?.spec_schema as Schema | undefined;
  const schema = pattern === 'task' ? document.data?.TaskSpec : own;
  const defs = pattern === 'task' ? document.data : own?.$defs;
  const kinds = [
    'task',
    ...(patterns.data ?? []).filter(({ is_broken }) => !is_broken).map(({ name }) => name),
  ];
  return (
    <Frame title="New">
      <div className="page">
        <Problem error={patterns.error ?? document.error} />
        {schema && defs ? (
          <Form
            key={pattern}
            pattern={pattern}
            template={template}
            when={when}
            schema={schema}
            defs={defs}
            hasFocused={hasFocused}
          >
            <fieldset className="kinds" aria-label="Pattern">
              {kinds.map((name) => (
                <Kind
                  key={name}
                  name={name}
                  about={patterns.data?.find((one) => one.name === name)?.summary ?? 'One agent, one task'}
                  chosen={name === pattern}
                  choose={() => navigate({ search: { pattern: name, template, when }, replace: true })}
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

function useDraft(pattern: string): [Typed, (values: Typed) => void, () => void] {
  const [kept, keep] = usePreference(`draft.${pattern}`, '{}');
  const typed = useMemo(() => JSON.parse(kept) as Typed, [kept]);
  return [typed, (values) => keep(JSON.stringify({ ...typed, ...values })), () => keep('{}')];
}

/** Recent directories, the latest first; those of the selected project before all others. */
function useDirectories(project: string | undefined): string[] {
  const work = [...useActive().work, ...useEnded().work].sort((a, b) =>
    b.created_at.localeCompare(a.created_at),
  );
  const own = work.filter((item) => item.project === project);
  return [...new Set([...(project ? own : []), ...work].map((item) => item.repository ?? item.directory))];
}

const PAUSE_MS = 400;

/** A text once nobody has typed for a moment. */
function useSettled(text: string): string {
  const [settled, settle] = useState(text);
  useEffect(() => {
    const timer = setTimeout(() => settle(text), PAUSE_MS);
    return () => clearTimeout(timer);
  }, [text]);
  return settled;
}

/** The agents as they are set up in a directory. */
function useAgentsIn(directory: string): Agent[] {
  const settled = useSettled(directory.trim());
  const there = useAgents(settled.startsWith('/') ? settled : undefined).data;
  const everywhere = useAgents().data;
  return there ?? everywhere ?? [];
}

interface FormProps {
  pattern: string;
  template: string | undefined;
  when: string | undefined;
  schema: Schema;
  defs: Record<string, Schema>;
  /** Tells whether the first field had the focus: the form of another pattern does not take it again. */
  hasFocused: RefObject<boolean>;
  children: ReactNode;
}

function Form({ pattern, template: wanted, when, schema, defs, hasFocused, children }: FormProps) {
  const fields = useMemo(() => fieldsOf(pattern, schema, defs), [pattern, schema, defs]);
  const [draft, change, clear] = useDraft(pattern);
  const type = (name: string, value: string) => change({ [name]: value });
  const asking = useRef(change);
  asking.current = change;
  // What the address asks for is chosen once, and can be changed then.
  useEffect(() => {
    if (wanted || when)
      asking.current({ ...(wanted ? { template: wanted } : {}), ...(when ? { when } : {}) });
  }, [wanted, when]);
  const [project] = useScope();
  const directories = useDirectories(project);
  const templates = useTemplates().data;
  const template = templates?.find(({ name }) => name === draft.template);
  // What is sent stands in the fields, also where nobody has typed it.
  const typed: Typed = {
    directory: template?.directory ?? directories[0] ?? '',
    project: project ?? '',
    ...draft,
  };
  const asked = askedFor(pattern, typed);
  const agents = useAgentsIn(typed.directory ?? '');
  const usual = template?.agent ?? agents.find((agent) => agent.default)?.name;
  const navigate = useNavigate();
  const start = useAction(async (): Promise<Work | Schedule> => {
    const spec = specOf(pattern, fields, asked);
    const trigger = triggerOf(typed);
    if (trigger) {
      const schedule = { kind: pattern, spec, title: spec.title, ...trigger };
      return ask(api.POST('/api/v1/schedules', { body: schedule as never }));
    }
    const body = spec as never;
    return pattern === 'task'
      ? ask(api.POST('/api/v1/tasks', { body }))
      : ask(api.POST('/api/v1/runs', { body: { pattern, spec } }));
  });
  const [sent, keepSent] = useState(typed);
  const [wrongs, setWrongs] = useState<Record<string, string>>({});
  const [saving, save] = useState(false);
  const send = () => {
    keepSent(typed);
    const found = { ...wrongsOf(pattern, fields, asked), ...wrongTimes(typed) };
    setWrongs(found);
    start.reset();
    if (Object.keys(found).length > 0) return;
    start.mutate(undefined, {
      onSuccess: (work) => {
        clear();
        navigate({ to: `/${placeOf(work)}/${work.id}` });
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
  const refused: Record<string, string> =
    start.error instanceof ApiError ? problemsOf(start.error, [...fields, ...WHEN], sent) : {};
  const problems = { ...wrongs, ...refused };
  // What was typed anew is not what was refused.
  for (const name of Object.keys(problems)) {
    const isAnew = (key: string) => (typed[key] ?? '') !== (sent[key] ?? '');
    if (isAnew(name) || isAnew(KEYS[name] ?? name)) delete problems[name];
  }
  const form = useRef<HTMLFormElement>(null);
  useEffect(() => {
    if (hasFocused.current) return;
    hasFocused.current = true;
    form.current?.querySelector<HTMLElement>('textarea')?.focus({ preventScroll: true });
  }, [hasFocused]);
  useEffect(() => {
    form.current?.querySelector<HTMLElement>('[aria-invalid=true]')?.focus();
  }, [start.error, wrongs]);
  const unplaced = start.error && Object.keys(refused).length === 0 ? start.error : null;
  const named = (names: string[]) =>
    names.map((name) => fields.find((field) => field.name === name)).filter((field) => field !== undefined);
  const until = pattern === 'loop' ? Object.values(UNTIL).flat().concat(JUDGED) : [];
  const placed = [...WHERE, ...LIMITS, ...PROOF, ...WHO, ...until];
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
      known={{ directories, agents, usual }}
    />
  );
  const changed = rest.filter((field) => typed[field.name]).length;
  return (
    <>
      <form ref={form} className="form" onSubmit={submit} onKeyDown={press} noValidate>
        <div>
          {children}
          <div className="fs stack">{main.map(show)}</div>
          {pattern === 'loop' ? (
            <section className="fs" aria-labelledby="h-until">
              <h2 id="h-until">Until</h2>
              <Choices
                label="Until"
                value={untilOf(typed)}
                choose={(value) => type('until.by', value)}
                of={UNTILS}
              />
              <div className="grid2 mt-3">{named(UNTIL[untilOf(typed)]).map(show)}</div>
            </section>
          ) : (
            <Group title="Acceptance checks" fields={named(PROOF)} show={show} columns="grid2" />
          )}
          <Group title="Participants" fields={named(WHO)} show={show} columns="grid2" />
          <Group title="Workspace and agent" fields={named(WHERE)} show={show} columns="grid2" />
          <Group title="Limits" fields={named(LIMITS)} show={show} columns="grid3" />
          <WhenGroup typed={typed} type={type} problems={problems} waits={pattern === 'task'} />
          <details className="fs more" open={rest.some((field) => problems[field.name])}>
            <summary>
              <Icon name="right" className="chev" />
              {rest.length} more options{' '}
              <span className="faint">{changed ? `${changed} changed` : 'all default'}</span>
            </summary>
            <div className="grid2 mt-3">{rest.map(show)}</div>
          </details>
          <Problem error={unplaced} />
          <div className="submit">
            <Button type="submit" look="primary" hotkey={withCommand('↵')} disabled={start.isPending}>
              {start.isPending
                ? 'Starting…'
                : `${triggerOf(typed) ? 'Schedule' : 'Start'} the ${nounOf(pattern)}`}
            </Button>
            <Button onClick={() => save(true)}>Save as template</Button>
            <Button look="quiet" onClick={clear}>
              Clear
            </Button>
            {Object.keys(problems).length > 0 && (
              <span className="end c-bad">{counted(Object.keys(problems).length, 'problem')} to fix</span>
            )}
          </div>
        </div>
        <Aside pattern={pattern} fields={fields} typed={asked} agent={typed.agent || usual} />
      </form>
      {saving && (
        <SaveTemplate
          close={() => save(false)}
          spec={{
            name: '',
            guidelines: main.map((field) => (field.input === 'long' ? typed[field.name] : '')).join(''),
            agent: typed.agent || null,
            model: typed.model || null,
            directory: typed.directory || null,
          }}
        />
      )}
    </>
  );
}

/** The values of the form that apply, by field. */
function askedFor(pattern: string, typed: Typed): Typed {
  const asked = chosenOf(pattern, typed);
  const after = whenOf(typed) === 'after' ? typed['when.after'] : '';
  return after ? { ...asked, depends_on: [asked.depends_on, after].filter(Boolean).join('\n') } : asked;
}

/** The specification for the daemon. */
function specOf(pattern: string, fields: Field[], asked: Typed): Record<string, unknown> {
  const spec: Record<string, unknown> = {};
  for (const field of fields) {
    const value = given(field, asked[field.name] ?? '');
    if (value === undefined) continue;
    const [name = '', part] = field.name.split('.');
    if (part) spec[name] = { ...(spec[name] as object | undefined), [part]: value };
    else spec[name] = value;
  }
  // In a terminal the first words may be typed there.
  if (spec.interactive) spec.prompt ??= '';
  // Further steps follow the prompt, as they do on the command line.
  if (pattern === 'loop' && spec.steps && spec.prompt) {
    spec.steps = [spec.prompt, ...(spec.steps as string[])];
    delete spec.prompt;
  }
  return spec;
}

const nounOf = (pattern: string): string => (pattern === 'orchestrate' ? 'orchestration' : pattern);

/** The view that shows what was started. */
function placeOf(work: object): string {
  if ('cron' in work) return 'schedules';
  return 'pattern' in work ? 'runs' : 'tasks';
}

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

interface AsideProps {
  pattern: string;
  fields: Field[];
  typed: Typed;
  agent: string | undefined;
}

function Aside({ pattern, fields, typed, agent }: AsideProps) {
  const command = commandOf(pattern, fields, typed, triggerWords(typed));
  const happens = happensOf(pattern, typed, agent);
  if (triggerOf(typed))
    happens.unshift('The work waits for its schedule; see Schedules for the next times and results.');
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
          <h2>CLI equivalent</h2>
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
