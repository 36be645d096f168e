import { useNavigate } from '@tanstack/react-router';
import { useState } from 'react';
import { api, ask } from '../../api/client';
import { useChange, useLists } from '../../api/knowledge';
import { useAgents, useEnded } from '../../api/queries';
import type { components } from '../../api/schema';
import { counted } from '../../model/format';
import { Button, Empty, Loading, Problem } from '../../parts/controls';
import { Icon } from '../../parts/icon';
import { Table } from '../../parts/table';
import { Moment, Said } from '../../parts/text';
import { Editor, Input } from './editor';

type List = components['schemas']['BatchView'];

const NEW = { name: '', markdown: '- ' };
const named = (name: string) => ({ params: { path: { name } } });

/** Lists of work that are kept, to be changed and worked off. */
export function Lists() {
  const read = useLists();
  const [open, setOpen] = useState<List | typeof NEW | null>(null);
  const lists = read.data ?? [];
  return (
    <div className={`knows ${open ? 'two' : ''}`}>
      <div className="stack">
        <div className="bar-of-list">
          <span className="faint">Saved items for batches; each is a task or a run of a pattern.</span>
          <Button small onClick={() => setOpen(NEW)}>
            <Icon name="plus" />
            New list
          </Button>
        </div>
        <Problem error={read.error} />
        {read.isPending && <Loading />}
        {read.data && lists.length === 0 && (
          <Empty title="No list yet">
            <p className="cmd">kapelle batches save night night.md</p>
          </Empty>
        )}
        {lists.length > 0 && (
          <Table columns={['List', { num: 'Items' }, { num: 'Saved' }]}>
            {lists.map((list) => (
              <tr key={list.name} className={open?.name === list.name ? 'chosen' : ''}>
                <td className="full">
                  <button type="button" className="link" onClick={() => setOpen(list)}>
                    <Said>{list.name}</Said>
                  </button>
                </td>
                <td className="num">{list.items.length}</td>
                <td className="num faint">
                  <Moment at={list.updated_at} />
                </td>
              </tr>
            ))}
          </Table>
        )}
      </div>
      {open && <Edit key={open.name} list={open} close={() => setOpen(null)} />}
    </div>
  );
}

function Edit({ list, close }: { list: List | typeof NEW; close: () => void }) {
  const kept = 'version' in list ? list : null;
  const [name, setName] = useState(list.name);
  const [text, setText] = useState(list.markdown);
  const save = useChange('batches', () =>
    ask(
      api.PUT('/api/v1/batches/{name}', {
        ...named(name),
        body: { text, format: 'markdown', expected_version: kept?.version ?? 0 },
      }),
    ),
  );
  const remove = useChange('batches', () => ask(api.DELETE('/api/v1/batches/{name}', named(name))));
  return (
    <Editor
      title={kept ? <Said>{kept.name}</Said> : 'New list'}
      send="Save"
      submit={() => save.mutate(undefined, { onSuccess: close })}
      pending={save.isPending || remove.isPending}
      error={save.error ?? remove.error}
      remove={kept ? () => remove.mutate(undefined, { onSuccess: close }) : undefined}
      close={close}
      facts={kept && <WorkOff list={kept} />}
    >
      <Input label="Name" value={name} change={setName} disabled={kept !== null} />
      <Input
        label="Items"
        value={text}
        change={setText}
        rows={12}
        about="each begins with “- ”; “  - agent: NAME” below it selects the agent"
      />
    </Editor>
  );
}

function WorkOff({ list }: { list: List }) {
  const navigate = useNavigate();
  const known = useEnded().work[0]?.directory ?? '';
  const [typed, setTyped] = useState({ directory: '', agent: '', many: '4' });
  const agents = useAgents().data ?? [];
  const field = (of: keyof typeof typed) => ({
    value: typed[of],
    change: (value: string) => setTyped({ ...typed, [of]: value }),
  });
  const run = useChange('work', () => {
    const spec = {
      items: list.items,
      title: list.name,
      directory: typed.directory || known,
      at_once: Number(typed.many),
      ...(typed.agent && { agent: typed.agent }),
    };
    return ask(api.POST('/api/v1/runs', { body: { pattern: 'batch', spec } }));
  });
  const begin = () =>
    run.mutate(undefined, {
      onSuccess: ({ id }) => void navigate({ to: '/runs/$id/{-$tab}', params: { id, tab: undefined } }),
    });
  return (
    <section className="stack" aria-label="Start the batch">
      <Input label="Directory" {...field('directory')} about={known && `without one, ${known}`} />
      <div className="grid2">
        <Input label="Agent" {...field('agent')} choices={['', ...agents.map((agent) => agent.name)]} />
        <Input label="Concurrency" {...field('many')} />
      </div>
      <Problem error={run.error} />
      <Button onClick={begin} disabled={run.isPending || list.items.length === 0}>
        Work off {counted(list.items.length, 'item')}
      </Button>
    </section>
  );
}
