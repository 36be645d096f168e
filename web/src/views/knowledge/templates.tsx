import { Link } from '@tanstack/react-router';
import { type FormEvent, useState } from 'react';
import { ApiError } from '../../api/client';
import {
  deleteTemplate,
  keepTemplate,
  type Template,
  type TemplateSpec,
  useChange,
  useTemplates,
} from '../../api/knowledge';
import { useAgents } from '../../api/queries';
import { money, span } from '../../model/format';
import { Button, Empty, Loading, Problem } from '../../parts/controls';
import { Dialog } from '../../parts/dialog';
import { Icon } from '../../parts/icon';
import { Table } from '../../parts/table';
import { Said } from '../../parts/text';
import { useToast } from '../../parts/toast';
import { Editor, Input } from './editor';

const NEW: TemplateSpec = { name: '', guidelines: '', agent: null, model: null, directory: null };

/** The success rate of tasks with the template. */
export function succeeded({ records }: Template): string {
  const tasks = records.reduce((sum, record) => sum + record.tasks, 0);
  const completed = records.reduce((sum, record) => sum + record.completed, 0);
  return tasks ? `${completed} of ${tasks}` : 'not used yet';
}

export function Templates() {
  const read = useTemplates();
  const [open, setOpen] = useState<Template | TemplateSpec | null>(null);
  const templates = read.data ?? [];
  return (
    <div className={`knows ${open ? 'two' : ''}`}>
      <div className="stack">
        <div className="bar-of-list">
          <span className="faint">Reusable guidelines that you can attach to a task.</span>
          <Button small onClick={() => setOpen(NEW)}>
            <Icon name="plus" />
            New template
          </Button>
        </div>
        <Problem error={read.error} />
        {read.isPending && <Loading />}
        {read.data && templates.length === 0 && (
          <Empty title="No template yet">
            <p>Save guidelines that you use often under a name:</p>
            <p className="cmd">kapelle templates create bugfix "Write a test that fails first."</p>
          </Empty>
        )}
        {templates.length > 0 && (
          <Table columns={['Template', 'Guidelines', 'Agent', { num: 'Succeeded' }, '']}>
            {templates.map((template) => (
              <tr key={template.name} className={open?.name === template.name ? 'chosen' : ''}>
                <td className="full">
                  <button type="button" className="link" onClick={() => setOpen(template)}>
                    <Said>{template.name}</Said>
                  </button>
                </td>
                <td className="dim">
                  <Said className="cut">{template.guidelines}</Said>
                </td>
                <td className="dim">
                  <Said>{[template.agent, template.model].filter(Boolean).join(', ') || 'anybody'}</Said>
                </td>
                <td className="num faint">{succeeded(template)}</td>
                <td className="num">
                  <Use name={template.name} />
                </td>
              </tr>
            ))}
          </Table>
        )}
      </div>
      {open && <Edit key={open.name} template={open} close={() => setOpen(null)} />}
    </div>
  );
}

const LABELS: Record<keyof TemplateSpec, string> = {
  name: 'Name',
  guidelines: 'Guidelines',
  agent: 'Agent',
  model: 'Model',
  directory: 'Directory',
};
const NAME = /^[A-Za-z0-9._-]+$/;
const OF_NAME = 'Letters, digits, dots, _ and -.';

/** A template as it is typed: its fields, what is wrong with each, and how to keep it. */
function useTyped(template: TemplateSpec, before: string | null, done: () => void) {
  const [typed, setTyped] = useState<TemplateSpec>({
    name: template.name,
    guidelines: template.guidelines,
    agent: template.agent ?? null,
    model: template.model ?? null,
    directory: template.directory ?? null,
  });
  const [sent, send] = useState<TemplateSpec | null>(null);
  const keep = useChange('templates', (spec: TemplateSpec) => keepTemplate(spec, before));
  const wrong: Partial<Record<keyof TemplateSpec, string>> = {};
  if (sent && sent.name === typed.name && !NAME.test(typed.name))
    wrong.name = typed.name ? `Use only: ${OF_NAME}` : 'Enter a name.';
  if (sent && sent.guidelines === typed.guidelines && !typed.guidelines.trim())
    wrong.guidelines = 'Enter the guidelines.';
  const problem = keep.error instanceof ApiError ? keep.error.fields[0] : undefined;
  const place = (Object.keys(LABELS) as (keyof TemplateSpec)[]).find((name) => name === problem?.path[0]);
  if (problem && place && sent?.[place] === typed[place])
    wrong[place] = problem.kind === 'value' ? `${LABELS[place]} ${problem.message}` : problem.message;
  const submit = () => {
    send(typed);
    if (NAME.test(typed.name) && typed.guidelines.trim()) keep.mutate(typed, { onSuccess: done });
  };
  const text = (name: keyof TemplateSpec) => ({
    label: LABELS[name],
    value: typed[name] ?? '',
    problem: wrong[name],
    change: (value: string) =>
      setTyped({ ...typed, [name]: value || (name === 'name' || name === 'guidelines' ? '' : null) }),
  });
  return { text, submit, pending: keep.isPending, error: place ? null : keep.error };
}

function Fields({ text, rows }: { text: ReturnType<typeof useTyped>['text']; rows: number }) {
  const agents = useAgents().data ?? [];
  return (
    <>
      <Input {...text('name')} about={OF_NAME} />
      <Input {...text('guidelines')} rows={rows} about="Added to the prompt of a task." />
      <div className="grid2">
        <Input {...text('agent')} choices={['', ...agents.map(({ name }) => name)]} />
        <Input {...text('model')} />
      </div>
      <Input {...text('directory')} about="Default working directory." />
    </>
  );
}

function Edit({ template, close }: { template: Template | TemplateSpec; close: () => void }) {
  const before = template.name || null;
  const { text, submit, pending, error } = useTyped(template, before, close);
  const remove = useChange('templates', deleteTemplate);
  return (
    <Editor
      title={before ? <Said>{before}</Said> : 'New template'}
      send="Save"
      submit={submit}
      pending={pending || remove.isPending}
      error={error ?? remove.error}
      remove={before ? () => remove.mutate(before, { onSuccess: close }) : undefined}
      close={close}
      facts={'records' in template && <Record template={template} />}
    >
      <Fields text={text} rows={9} />
    </Editor>
  );
}

const Use = ({ name }: { name: string }) => (
  <Link className="btn sm" to="/new" search={{ template: name }}>
    Use it
  </Link>
);

/** From New: keep what was typed there under a name. */
export function SaveTemplate({ spec, close }: { spec: TemplateSpec; close: () => void }) {
  const tell = useToast();
  const done = () => {
    tell({ state: 'ok', text: 'Template saved.', to: '/knowledge/templates' });
    close();
  };
  const { text, submit, pending, error } = useTyped(spec, null, done);
  const send = (event: FormEvent) => {
    event.preventDefault();
    submit();
  };
  return (
    <Dialog title="Save as template" close={close}>
      <form className="stack" onSubmit={send}>
        <Fields text={text} rows={5} />
        <Problem error={error} />
        <div className="acts">
          <Button type="submit" look="primary" disabled={pending}>
            Save
          </Button>
          <Button look="quiet" onClick={close}>
            Cancel
          </Button>
        </div>
      </form>
    </Dialog>
  );
}

/** The outcomes of tasks with a template, by model. */
export function Record({ template }: { template: Template }) {
  if (template.records.length === 0)
    return <p className="faint">No task with this template has ended yet.</p>;
  return (
    <div className="scrolls">
      <table className="table tight">
        <thead>
          <tr>
            <th>Who</th>
            <th className="num">Succeeded</th>
            <th className="num">Cost</th>
            <th className="num">Turns</th>
            <th className="num">Time</th>
          </tr>
        </thead>
        <tbody>
          {template.records.map((record) => (
            <tr key={`${record.agent} ${record.model}`}>
              <td>
                <Said>{[record.agent, record.model].filter(Boolean).join(', ')}</Said>
              </td>
              <td className="num">
                {Math.round(record.success_rate * 100)} %<span className="faint"> of {record.tasks}</span>
              </td>
              <td className="num">{money(record.cost_usd, '–')}</td>
              <td className="num">{record.turns === null ? '' : record.turns.toFixed(1)}</td>
              <td className="num">{record.duration_s === null ? '' : span(record.duration_s)}</td>
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

/** In New: what became of the work that a template was used for. */
export function Chosen({ name }: { name: string }) {
  const template = useTemplates().data?.find((one) => one.name === name);
  if (!template) return null;
  return (
    <section className="panel box">
      <header>
        <h2>
          <Said>{template.name}</Said>
        </h2>
        <Link className="faint" to="/knowledge/{-$tab}" params={{ tab: 'templates' }}>
          your template
        </Link>
      </header>
      <Record template={template} />
    </section>
  );
}
