import { Link } from '@tanstack/react-router';
import { useState } from 'react';
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
import { Icon } from '../../parts/icon';
import { Table } from '../../parts/table';
import { Said } from '../../parts/text';
import { Editor, Input } from './editor';

const NEW: TemplateSpec = { name: '', guidelines: '', agent: null, model: null, directory: null };

/** How many of the tasks that used it succeeded. */
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
          <span className="faint">What an agent is told under “Guidelines”, by a name of yours.</span>
          <Button small onClick={() => setOpen(NEW)}>
            <Icon name="plus" />
            New template
          </Button>
        </div>
        <Problem error={read.error} />
        {read.isPending && <Loading />}
        {read.data && templates.length === 0 && (
          <Empty title="No template yet">
            <p>Words that you write again and again, kept under a name:</p>
            <p className="cmd">kapelle templates create bugfix "Write a test that fails first."</p>
          </Empty>
        )}
        {templates.length > 0 && (
          <Table columns={['Template', 'Guidelines', 'Who', { num: 'Succeeded' }]}>
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
              </tr>
            ))}
          </Table>
        )}
      </div>
      {open && <Edit key={open.name} template={open} close={() => setOpen(null)} />}
    </div>
  );
}

function Edit({ template, close }: { template: Template | TemplateSpec; close: () => void }) {
  const before = template.name || null;
  const [typed, setTyped] = useState<TemplateSpec>({
    name: template.name,
    guidelines: template.guidelines,
    agent: template.agent ?? null,
    model: template.model ?? null,
    directory: template.directory ?? null,
  });
  const agents = useAgents().data ?? [];
  const keep = useChange('templates', (spec: TemplateSpec) => keepTemplate(spec, before));
  const remove = useChange('templates', deleteTemplate);
  const text = (name: keyof TemplateSpec) => ({
    value: typed[name] ?? '',
    change: (value: string) =>
      setTyped({ ...typed, [name]: value || (name === 'name' || name === 'guidelines' ? '' : null) }),
  });
  return (
    <Editor
      title={before ? <Said>{before}</Said> : 'New template'}
      send="Keep it"
      submit={() => keep.mutate(typed, { onSuccess: close })}
      pending={keep.isPending || remove.isPending}
      error={keep.error ?? remove.error}
      remove={before ? () => remove.mutate(before, { onSuccess: close }) : undefined}
      close={close}
      facts={'records' in template && <Record template={template} />}
    >
      <Input label="Name" {...text('name')} about="letters, digits, dots, _ and -" />
      <Input label="Guidelines" {...text('guidelines')} rows={9} />
      <div className="grid2">
        <Input label="Agent" {...text('agent')} choices={['', ...agents.map(({ name }) => name)]} />
        <Input label="Model" {...text('model')} />
      </div>
      <Input
        label="Directory"
        {...text('directory')}
        about="where such work is done unless you say otherwise"
      />
    </Editor>
  );
}

/** What came of the tasks that used a template, for each model. */
export function Record({ template }: { template: Template }) {
  if (template.records.length === 0) return <p className="faint">No task that used it has ended yet.</p>;
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
              <td className="num">{money(record.cost_usd)}</td>
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
