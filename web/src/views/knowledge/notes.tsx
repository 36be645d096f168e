import { useSearch } from '@tanstack/react-router';
import { useId, useState } from 'react';
import { isRun, type Work } from '../../api/client';
import {
  deleteNote,
  type Note,
  useChange,
  useNote,
  useNotes,
  useProjects,
  writeNote,
} from '../../api/knowledge';
import { useOne, useWork } from '../../api/queries';
import { bytes, shortId } from '../../model/format';
import { Button, Empty, Loading, Problem } from '../../parts/controls';
import { Icon } from '../../parts/icon';
import { Table } from '../../parts/table';
import { Moment, Said } from '../../parts/text';
import { useScope } from '../../shell/preferences';
import { Editor, Input } from './editor';

/** Keys by what stands before their first slash. */
function byFolder(notes: Note[]): [string, Note[]][] {
  const found = new Map<string, Note[]>();
  for (const note of notes) {
    const folder = note.key.includes('/') ? `${note.key.split('/')[0]}/` : '';
    found.set(folder, [...(found.get(folder) ?? []), note]);
  }
  return [...found];
}

export function Notes() {
  const asked: { scope?: string; note?: string } = useSearch({ strict: false });
  const [project] = useScope();
  const [scope, setScope] = useState(asked.scope ?? (project ? `project:${project}` : 'global'));
  const [open, setOpen] = useState<string | null>(asked.note ?? null);
  const read = useNotes(scope);
  const notes = read.data?.notes ?? [];
  return (
    <div className={`knows ${open === null ? '' : 'two'}`}>
      <div className="stack">
        <div className="bar-of-list">
          <Scopes
            scope={scope}
            choose={(chosen) => {
              setScope(chosen);
              setOpen(null);
            }}
          />
          <Button small onClick={() => setOpen('')}>
            <Icon name="plus" />
            New note
          </Button>
        </div>
        <Problem error={read.error} />
        {read.isPending && <Loading />}
        {read.data && notes.length === 0 && (
          <Empty title="No notes here">
            <p>
              Agents and people share texts under a key. The notes of a workflow or another run are under that
              run: choose it above.
            </p>
            <p className="cmd">kapelle notes set results/step1 "…"</p>
          </Empty>
        )}
        {byFolder(notes).map(([folder, some]) => (
          <Table
            key={folder}
            className="notes"
            columns={[folder ? <Said>{folder}</Said> : 'Key', { num: 'Size' }, 'By', 'Written']}
          >
            {some.map((note) => (
              <tr key={note.key} className={open === note.key ? 'chosen' : ''}>
                <td className="full">
                  <button type="button" className="link" onClick={() => setOpen(note.key)}>
                    <Said>{note.key.slice(folder.length)}</Said>
                  </button>
                </td>
                <td className="num dim">{bytes(note.size)}</td>
                <td className="dim">
                  <Said>{note.task_id ?? note.author}</Said>
                </td>
                <td className="faint">
                  <Moment at={note.updated_at} />
                </td>
              </tr>
            ))}
          </Table>
        ))}
      </div>
      {open !== null && (
        <Opened key={`${scope} ${open}`} scope={scope} name={open} close={() => setOpen(null)} />
      )}
    </div>
  );
}

const LATEST = 60;

/** Whose notes are shown: everybody's, those of a project, or those of a run or task and what is in it. */
function Scopes({ scope, choose }: { scope: string; choose: (scope: string) => void }) {
  const id = useId();
  const projects = (useProjects().data ?? []).filter((one) => !one.archived_at);
  const list = useWork({ limit: LATEST }).data?.pages.flatMap(({ work }) => work) ?? [];
  const isListed =
    scope === 'global' || scope.startsWith('project:') || list.some((work) => work.id === scope);
  const other = useOne(scope, !isListed).data;
  const group = (label: string, of: Work[]) =>
    of.length > 0 && (
      <optgroup label={label}>
        {of.map((work) => (
          <option key={work.id} value={work.id}>
            {work.title} ({isRun(work) ? work.pattern : 'task'} {shortId(work.id)})
          </option>
        ))}
      </optgroup>
    );
  return (
    <>
      <label htmlFor={id}>Scope</label>
      <select id={id} className="field" value={scope} onChange={({ target }) => choose(target.value)}>
        <option value="global">all work</option>
        {!isListed && <option value={scope}>{other?.title ?? scope}</option>}
        {projects.length > 0 && (
          <optgroup label="Projects">
            {projects.map(({ name }) => (
              <option key={name} value={`project:${name}`}>
                {name}
              </option>
            ))}
          </optgroup>
        )}
        {group('Runs, with their tasks', list.filter(isRun))}
        {group(
          'Tasks',
          list.filter((work) => !isRun(work)),
        )}
      </select>
    </>
  );
}

function Opened({ scope, name, close }: { scope: string; name: string; close: () => void }) {
  const read = useNote(scope, name);
  if (name && read.isPending) return <Loading />;
  return <Edit scope={scope} latest={name ? (read.data ?? null) : null} close={close} />;
}

function Edit({ scope, latest, close }: { scope: string; latest: Note | null; close: () => void }) {
  const [note, setNote] = useState(latest);
  const [key, setKey] = useState(note?.key ?? '');
  const [value, setValue] = useState(note?.value ?? '');
  // It is written only if it is still what is shown here.
  const expected_version = note?.version ?? 0;
  const write = useChange('notes', () => writeNote({ key, value, scope, expected_version }));
  const remove = useChange('notes', () => deleteNote({ scope, key, expected_version }));
  return (
    <Editor
      title={note ? <Said>{note.key}</Said> : 'New note'}
      send="Save"
      submit={() => write.mutate(undefined, { onSuccess: close })}
      pending={write.isPending || remove.isPending}
      error={write.error ?? remove.error}
      remove={note ? () => remove.mutate(undefined, { onSuccess: close }) : undefined}
      close={close}
      facts={
        note && (
          <p className="faint">
            Written <Moment at={note.updated_at} /> by <Said>{note.task_id ?? note.author}</Said>. Yours is
            refused if somebody else changes the note first.
          </p>
        )
      }
    >
      {latest && note && latest.version !== note.version && (
        <p className="note" role="status">
          <span>Changed by someone else; reload before saving.</span>
          <Button
            small
            onClick={() => {
              setNote(latest);
              setValue(latest.value ?? '');
            }}
          >
            Reload
          </Button>
        </p>
      )}
      {!note && <Input label="Key" value={key} change={setKey} about="such as results/step1" />}
      <Input label="Text" value={value} change={setValue} rows={14} />
    </Editor>
  );
}
