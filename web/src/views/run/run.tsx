import { Navigate, useParams } from '@tanstack/react-router';
import { isRun, type Run, type Step } from '../../api/client';
import { useOne, useSteps } from '../../api/queries';
import { lazyPart } from '../../lazy';
import { shortId } from '../../model/format';
import { Loading } from '../../parts/controls';
import { View as Frame } from '../../shell/layout';
import { Columns } from '../columns';
import { Events } from '../events';
import { Missing } from '../missing';
import { Crumbs, Head, type Tab, Tabs } from '../work_head';
import { Batch } from './batch';
import { Belongs } from './belongs';
import { BestOf } from './best_of';
import { Conducted, ConductedPhases } from './conducted';
import { Debate } from './debate';
import { FollowUp } from './follow_up';
import { RunInspector } from './inspector';
import { Lanes } from './lanes';
import { Loop } from './loop';
import { Pipeline } from './pipeline';
import { telling } from './step_facts';
import { Steps } from './steps';
import { Team, TeamPhases } from './team';
import { Workflow, WorkflowPhases } from './workflow';

const Changes = lazyPart(async () => (await import('../changes')).Changes);

type Part = (props: { run: Run; steps: Step[] }) => React.ReactNode;

const PHASES: Record<string, Part> = {
  team: TeamPhases,
  orchestrate: ConductedPhases,
  workflow: WorkflowPhases,
};

const PICTURES: Record<string, [string, Part]> = {
  loop: ['Iterations', Loop],
  team: ['Plan', Team],
  'best-of': ['Candidates', BestOf],
  pipeline: ['Steps', Pipeline],
  orchestrate: ['Plan', Conducted],
  batch: ['Items', Batch],
  tracks: ['Tracks', Lanes],
  workflow: ['Plan', Workflow],
  debate: ['Rounds', Debate],
};

export function View() {
  const { id, tab } = useParams({ from: '/inside/runs/$id/{-$tab}' });
  const found = useOne(id);
  if (found.error) return <Missing what={found.error.message} />;
  if (found.data && !isRun(found.data))
    return <Navigate to="/tasks/$id/{-$tab}" params={{ id: found.data.id }} replace />;
  if (!found.data) {
    return (
      <Frame title={shortId(id)}>
        <Loading lines={8} />
      </Frame>
    );
  }
  return <OneRun run={found.data} tab={tab} />;
}

function OneRun({ run, tab }: { run: Run; tab: string | undefined }) {
  const steps = useSteps(run.id).data ?? [];
  const picture = PICTURES[run.pattern];
  const tabs: Tab[] = [
    ...(picture ? [{ name: 'picture', label: picture[0] }] : []),
    { name: 'steps', label: 'Steps', count: telling(steps).length || null },
    ...(run.workspace.branch ? [{ name: 'changes', label: 'Changes' }] : []),
    { name: 'events', label: 'Events' },
  ];
  const current = tabs.find(({ name }) => name === tab)?.name ?? tabs[0]?.name;
  const Picture = picture?.[1];
  const Phases = PHASES[run.pattern];
  return (
    <Frame title={run.title} head={<Crumbs work={run} />}>
      <Head work={run}>{Phases && <Phases run={run} steps={steps} />}</Head>
      <Tabs work={run} tabs={tabs} current={current ?? ''} />
      <Columns tab={current} beside={<RunInspector run={run} steps={steps} />}>
        <div className="body stack">
          {current === 'picture' && Picture && <Picture run={run} steps={steps} />}
          {current === 'steps' && <Steps run={run} steps={steps} />}
          {current === 'changes' && <Changes work={run} />}
          {current === 'events' && <Events of={{ run_id: run.id }} />}
          {current === 'picture' && <Belongs run={run} />}
          <FollowUp run={run} />
        </div>
      </Columns>
    </Frame>
  );
}
