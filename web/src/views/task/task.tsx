import { Navigate, useParams } from '@tanstack/react-router';
import { isRun, type Task } from '../../api/client';
import { useDiff, useOne } from '../../api/queries';
import { lazyPart } from '../../lazy';
import { bytes, counted, shortId } from '../../model/format';
import { latest } from '../../model/work';
import { Loading } from '../../parts/controls';
import { View as Frame } from '../../shell/layout';
import { Columns } from '../columns';
import { useComments } from '../comments';
import { Events } from '../events';
import { Missing } from '../missing';
import { Crumbs, Head, type Tab, Tabs } from '../work_head';
import { Attempts } from './attempts';
import { Checks } from './checks';
import { Conversation } from './conversation';
import { Inspector } from './inspector';
import { Ladder } from './ladder';
import { Pictures } from './pictures';

const Changes = lazyPart(async () => (await import('../changes')).Changes);
const Terminal = lazyPart(async () => (await import('./terminal')).Terminal);
const Output = lazyPart(async () => (await import('./output')).Output);

export function View() {
  const { id, tab } = useParams({ from: '/inside/tasks/$id/{-$tab}' });
  const found = useOne(id);
  if (found.error) return <Missing what={found.error.message} />;
  if (found.data && isRun(found.data))
    return <Navigate to="/runs/$id/{-$tab}" params={{ id: found.data.id }} replace />;
  if (!found.data) {
    return (
      <Frame title={shortId(id)}>
        <Loading lines={8} />
      </Frame>
    );
  }
  return <OneTask task={found.data} tab={tab} />;
}

function OneTask({ task, tab: named }: { task: Task; tab: string | undefined }) {
  const changed = useDiff(task.id).data?.files.length;
  const comments = useComments(task.id).all.length;
  const output = latest(task)?.output_bytes ?? 0;
  const tab = named ?? (task.interactive ? 'terminal' : 'conversation');
  const tabs: Tab[] = [
    ...(task.interactive ? [{ name: 'terminal', label: 'Terminal' }] : []),
    { name: 'conversation', label: 'Conversation' },
    {
      name: 'changes',
      label: 'Changes',
      count: changed || null,
      waits: comments ? counted(comments, 'comment') : null,
    },
    { name: 'checks', label: 'Checks', count: task.checks.length || task.check_specs.length || null },
    ...(task.browser ? [{ name: 'pictures', label: 'Screenshots' }] : []),
    { name: 'attempts', label: 'Attempts', count: task.attempts.length || null },
    { name: 'output', label: 'Output', count: output ? bytes(output) : null },
    { name: 'events', label: 'Events' },
  ];
  return (
    <Frame title={task.title} head={<Crumbs work={task} />}>
      <Head work={task}>
        <Ladder task={task} />
      </Head>
      <Tabs work={task} tabs={tabs} current={tab} />
      <Columns tab={tab} beside={<Inspector task={task} />}>
        <div className="body">
          <Part task={task} tab={tab} />
        </div>
      </Columns>
    </Frame>
  );
}

function Part({ task, tab }: { task: Task; tab: string }) {
  switch (tab) {
    case 'terminal':
      // Each attempt has a terminal of its own.
      return <Terminal key={Math.max(task.attempts.length, 1)} task={task} />;
    case 'changes':
      return <Changes work={task} />;
    case 'checks':
      return <Checks task={task} />;
    case 'pictures':
      return <Pictures task={task} />;
    case 'attempts':
      return <Attempts task={task} />;
    case 'output':
      return <Output task={task} />;
    case 'events':
      return <Events of={{ task_id: task.id }} />;
    default:
      return <Conversation task={task} />;
  }
}
