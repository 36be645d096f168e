import { type FormEvent, useState } from 'react';
import {
  changeProject,
  createProject,
  deleteProject,
  type Project,
  useChange,
  useProjects,
} from '../../api/knowledge';
import { useWork } from '../../api/queries';
import { stateOf } from '../../model/work';
import { Button, Empty, Loading, Problem } from '../../parts/controls';
import { Glyph } from '../../parts/glyph';
import { Table } from '../../parts/table';
import { Moment, Said } from '../../parts/text';
import { View as Frame } from '../../shell/layout';
import { useScope } from '../../shell/preferences';
import { WorkLink } from '../work_link';

/** Every project, and what was put away. */
export function View() {
  const read = useProjects();
  const [name, setName] = useState('');
  const create = useChange('projects', createProject);
  const add = (event: FormEvent) => {
    event.preventDefault();
    create.mutate(name.trim(), { onSuccess: () => setName('') });
  };
  const projects = read.data ?? [];
  const present = projects.filter((project) => !project.archived_at);
  const away = projects.filter((project) => project.archived_at);
  return (
    <Frame title="Projects">
      <div className="page wide stack">
        <form className="bar-of-list" onSubmit={add}>
          <input
            className="field"
            aria-label="Name of a new project"
            placeholder="Name of a new project"
            value={name}
            onChange={(event) => setName(event.target.value)}
          />
          <Button type="submit" small disabled={!name.trim() || create.isPending}>
            Create
          </Button>
          <span className="faint">Work that names a new project creates it, too.</span>
        </form>
        <Problem error={read.error ?? create.error} />
        {read.isPending && <Loading />}
        {read.data && present.length === 0 && <Empty title="No projects yet" />}
        {present.length > 0 && <List projects={present} />}
        <h2 className="head-of-list">Archive</h2>
        {away.length > 0 && <List projects={away} />}
        <ArchivedWork />
      </div>
    </Frame>
  );
}

const List = ({ projects }: { projects: Project[] }) => (
  <Table columns={['Project', 'Current in', { num: 'Open' }, { num: 'All' }, '']}>
    {projects.map((project) => (
      <Row key={project.name} project={project} />
    ))}
  </Table>
);

function Row({ project }: { project: Project }) {
  const [scope, choose] = useScope();
  const [name, setName] = useState<string | null>(null);
  const change = useChange('projects', changeProject);
  const remove = useChange('projects', deleteProject);
  const rename = (event: FormEvent) => {
    event.preventDefault();
    if (name === null) return;
    const done = () => {
      if (scope === project.name) choose(name);
      setName(null);
    };
    change.mutate({ name: project.name, to: name }, { onSuccess: done });
  };
  const away = project.archived_at !== null;
  return (
    <tr>
      <td className="full">
        {name === null ? (
          <Said>{project.name}</Said>
        ) : (
          <form className="bar-of-list" onSubmit={rename}>
            <input
              // biome-ignore lint/a11y/noAutofocus: whoever asks to rename it types its name
              autoFocus
              onKeyDown={(event) => event.key === 'Escape' && setName(null)}
              className="field"
              aria-label={`New name of ${project.name}`}
              value={name}
              onChange={(event) => setName(event.target.value)}
            />
            <Button type="submit" small>
              Rename
            </Button>
          </form>
        )}
        <Problem error={change.error ?? remove.error} />
      </td>
      <td className="dim mono">
        <Said>{project.directories.join(', ')}</Said>
      </td>
      <td className="num">{project.open}</td>
      <td className="num faint">{project.work}</td>
      <td className="num acts">
        <Button small look="quiet" onClick={() => setName(name === null ? project.name : null)}>
          {name === null ? 'Rename' : 'Cancel'}
        </Button>
        <Button small onClick={() => change.mutate({ name: project.name, archived: !away })}>
          {away ? 'Unarchive' : 'Archive'}
        </Button>
        {project.work === 0 && (
          <Button small onClick={() => remove.mutate(project.name)}>
            Delete
          </Button>
        )}
      </td>
    </tr>
  );
}

function ArchivedWork() {
  const [project] = useScope();
  const list = useWork({ project, archived: true, limit: 100 });
  const work = list.data?.pages.flatMap((page) => page.work).filter((one) => one.archived_at) ?? [];
  if (list.isPending) return <Loading />;
  if (work.length === 0 && !list.hasNextPage)
    return <p className="faint">No archived work{project ? ' of this project' : ''}.</p>;
  return (
    <div className="panel">
      <table className="table cardy">
        <tbody>
          {work.map((one) => (
            <tr key={one.id}>
              <td className="full">
                <span className="t">
                  <Glyph state={stateOf(one)} label={one.status} />
                  <WorkLink work={one} className="cut">
                    <Said>{one.title}</Said>
                  </WorkLink>
                </span>
              </td>
              <td className="dim">
                <Said>{one.project ?? ''}</Said>
              </td>
              <td className="num faint">{one.archived_at && <Moment at={one.archived_at} />}</td>
            </tr>
          ))}
        </tbody>
      </table>
      {list.hasNextPage && (
        <Button look="quiet" onClick={() => list.fetchNextPage()}>
          More
        </Button>
      )}
    </div>
  );
}
