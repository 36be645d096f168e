import { useState } from 'react';
import {
  addLearning,
  deleteLearning,
  keepLearning,
  type Learning,
  type LearningStatus,
  useChange,
  useLearnings,
} from '../../api/knowledge';
import { Button, Choices, Empty, Loading, Problem } from '../../parts/controls';
import { Icon } from '../../parts/icon';
import { Table } from '../../parts/table';
import { Age, Said } from '../../parts/text';
import { useScope } from '../../shell/preferences';
import { Editor, Input } from './editor';

const nameOf = (project: string | null) => project?.split('/').at(-1) ?? '';

export function Learnings() {
  const [status, setStatus] = useState<LearningStatus>('kept');
  const [query, setQuery] = useState('');
  const [open, setOpen] = useState<Learning | 'new' | null>(null);
  const [project] = useScope();
  const read = useLearnings(status, query, project);
  const found = read.data?.learnings ?? [];
  return (
    <div className={`knows ${open ? 'two' : ''}`}>
      <div className="stack">
        <div className="bar-of-list">
          <Choices<LearningStatus>
            label="Which"
            value={status}
            choose={setStatus}
            of={[
              { value: 'kept', label: 'Active' },
              { value: 'reported', label: 'To review' },
              { value: 'discarded', label: 'Rejected' },
            ]}
          />
          {status === 'kept' && (
            <input
              className="field"
              type="search"
              placeholder="Search"
              aria-label="Search learnings"
              value={query}
              onChange={(event) => setQuery(event.target.value)}
            />
          )}
          <Button small onClick={() => setOpen('new')}>
            <Icon name="plus" />
            New learning
          </Button>
        </div>
        <Problem error={read.error} />
        {read.isPending && <Loading />}
        {read.data && found.length === 0 && (
          <Empty title={query ? 'No matching learning' : 'No learnings'}>
            <p>
              Learnings from agents and from you go into the prompts of later work in the project, under
              “Memory”.
            </p>
            <p className="cmd">kapelle learnings add "The tests need Redis" "Start it with make redis."</p>
          </Empty>
        )}
        {found.length > 0 && (
          <Table columns={['Learning', 'Scope', 'By', { num: 'Age' }, ...(status === 'kept' ? [] : [''])]}>
            {found.map((one) => (
              <Row key={one.id} learning={one} open={() => setOpen(one)} chosen={one === open} />
            ))}
          </Table>
        )}
      </div>
      {open && (
        <Edit
          key={open === 'new' ? 'new' : open.id}
          learning={open === 'new' ? null : open}
          close={() => setOpen(null)}
        />
      )}
    </div>
  );
}

function Row({ learning, open, chosen }: { learning: Learning; open: () => void; chosen: boolean }) {
  const keep = useChange('learnings', keepLearning);
  const drop = useChange('learnings', deleteLearning);
  return (
    <tr className={chosen ? 'chosen' : ''}>
      <td className="full cuts">
        <button type="button" className="link" onClick={open}>
          <Said>{learning.title}</Said>
        </button>
        <Said className="cut dim">{learning.reason ?? learning.content}</Said>
        <Problem error={keep.error ?? drop.error} />
      </td>
      <td className="dim">
        <Said>{learning.scope === 'global' ? 'everybody' : nameOf(learning.project)}</Said>
      </td>
      <td className="dim">
        <Said>{learning.author}</Said>
      </td>
      <td className="num faint">
        <Age at={learning.created_at} />
      </td>
      {learning.status !== 'kept' && (
        <td className="num acts">
          <Button small onClick={() => keep.mutate({ id: learning.id, scope: learning.scope })}>
            Keep
          </Button>
          <Button small look="quiet" onClick={() => drop.mutate(learning.id)}>
            Delete
          </Button>
        </td>
      )}
    </tr>
  );
}

function Edit({ learning, close }: { learning: Learning | null; close: () => void }) {
  const [scoped] = useScope();
  const [typed, setTyped] = useState({
    title: learning?.title ?? '',
    content: learning?.content ?? '',
    tags: learning?.tags.join(', ') ?? '',
    scope: learning?.scope ?? 'project',
    project: learning?.project ?? scoped ?? '',
  });
  const text = (name: keyof typeof typed) => ({
    value: typed[name],
    change: (value: string) => setTyped({ ...typed, [name]: value }),
  });
  const spec = () => ({
    ...typed,
    scope: typed.scope as Learning['scope'],
    project: typed.project || null,
    tags: typed.tags.split(/[,\s]+/).filter(Boolean),
  });
  const keep = useChange('learnings', () =>
    learning ? keepLearning({ id: learning.id, ...spec() }) : addLearning(spec()),
  );
  const remove = useChange('learnings', deleteLearning);
  return (
    <Editor
      title={learning ? 'Learning' : 'New learning'}
      send="Save"
      submit={() => keep.mutate(undefined, { onSuccess: close })}
      pending={keep.isPending || remove.isPending}
      error={keep.error ?? remove.error}
      remove={learning ? () => remove.mutate(learning.id, { onSuccess: close }) : undefined}
      close={close}
    >
      <Input label="Title" {...text('title')} />
      <Input label="Content" {...text('content')} rows={8} />
      <Input label="Tags" {...text('tags')} />
      <div className="grid2">
        <Input label="Scope" {...text('scope')} choices={['project', 'global']} />
        <Input label="Project" {...text('project')} about="its name, or the repository's path" />
      </div>
    </Editor>
  );
}
