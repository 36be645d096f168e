import { memo } from 'react';
import { pulseOf, useActivity } from '../../api/activity';
import { isRun, type Run, type Task, type Work } from '../../api/client';
import { counted, lastOnScreen, money } from '../../model/format';
import { costOf, latest, progressOf, stateOf } from '../../model/work';
import { Choices, Empty, near, share } from '../../parts/controls';
import { Glyph } from '../../parts/glyph';
import { Icon } from '../../parts/icon';
import { Elapsed, Said } from '../../parts/text';
import { usePreference } from '../../shell/preferences';
import { lineText } from '../task/line_text';
import { WorkLink } from '../work_link';

export const isAtWork = (work: Work): work is Task => !isRun(work) && work.status === 'running';

const MOST_CARDS = 24;

interface Group {
  run: Run | null;
  tasks: Task[];
}

/** Runs with several agents are groups; everything else stands on its own. */
function groupsOf(work: Work[]): Group[] {
  const runs = new Map(work.filter(isRun).map((run) => [run.id, run]));
  const groups = new Map<string, Task[]>();
  for (const task of work.filter(isAtWork).sort((a, b) => a.id.localeCompare(b.id))) {
    const key = task.run_id ?? '';
    groups.set(key, [...(groups.get(key) ?? []), task]);
  }
  const alone: Task[] = [];
  const found: Group[] = [];
  for (const [id, tasks] of groups) {
    const run = runs.get(id);
    if (run && tasks.length > 1) found.push({ run, tasks });
    else alone.push(...tasks);
  }
  return alone.length > 0 ? [...found, { run: null, tasks: alone }] : found;
}

export function AtWork({ work }: { work: Work[] }) {
  const [chosen, choose] = usePreference('layout', '');
  const groups = groupsOf(work);
  const count = groups.reduce((sum, group) => sum + group.tasks.length, 0);
  const layout = chosen || (count > MOST_CARDS ? 'rows' : 'cards');
  return (
    <section className="section" aria-labelledby="h-run">
      <header>
        <h2 id="h-run">At work</h2>
        <span className="faint">{count || ''}</span>
        {count > 0 && (
          <span className="end">
            <Choices
              className="desk"
              label="Layout"
              value={layout}
              choose={choose}
              of={[
                { value: 'cards', label: 'Cards' },
                { value: 'rows', label: 'Rows' },
              ]}
            />
          </span>
        )}
      </header>
      {count === 0 && (
        <Empty title="No agent is at work">
          <p>What is started here, on the command line or by a schedule appears while it happens.</p>
        </Empty>
      )}
      {groups.map((group) => (
        <div className="group" key={group.run?.id ?? 'alone'}>
          <header>{group.run ? <RunHead run={group.run} /> : <span className="t">On their own</span>}</header>
          <div className={layout === 'cards' ? 'cards' : 'cards rows'}>
            {group.tasks.map((task) => (
              <Card key={task.id} task={task} pulses={layout === 'cards'} />
            ))}
          </div>
        </div>
      ))}
    </section>
  );
}

const RunHead = ({ run }: { run: Run }) => (
  <>
    <Glyph state={stateOf(run)} />
    <WorkLink work={run} className="t cut">
      <Said>{run.title}</Said>
    </WorkLink>
    <span>{run.pattern}</span>
    <span className="faint desk">{progressOf(run) !== run.pattern && progressOf(run)}</span>
  </>
);

/** Only what changes with each line of its agent is drawn again with it, not the card. */
const Card = memo(({ task, pulses }: { task: Task; pulses: boolean }) => {
  const attempt = latest(task);
  const warning = attempt?.warnings.at(-1);
  return (
    <WorkLink work={task} className="card">
      <span className="h">
        <Glyph state={stateOf(task)} />
        <span className="t cut">
          <Said>{task.title}</Said>
        </span>
        {attempt && <Elapsed className="el" from={attempt.started_at} />}
      </span>
      <LastLine task={task} />
      <span className="f">
        <span className="cut">
          {task.agent}{' '}
          {(attempt?.model ?? task.model) && <span className="model">{attempt?.model ?? task.model}</span>}
          {attempt && attempt.number > 1 && <span className="sep more">attempt {attempt.number}</span>}
          <Turns task={task} />
        </span>
        <Cost task={task} />
        {warning ? (
          <span className="warn">
            <Icon name="warn" />
            <Said>{warning.text}</Said>
          </span>
        ) : (
          pulses && attempt && <Pulse attempt={attempt.id} />
        )}
      </span>
    </WorkLink>
  );
});

const [WIDE, HIGH, BAR] = [58, 12, 2.4];

/** How much it printed lately, in small bars, the newest at the right. */
function Pulse({ attempt }: { attempt: string }) {
  useActivity(attempt);
  const pulse = pulseOf(attempt);
  const most = Math.log1p(Math.max(...pulse, 1));
  const slot = WIDE / pulse.length;
  const bars = pulse.flatMap((bytes, place) => {
    if (bytes === 0) return [];
    const high = Math.max(1.5, (HIGH * Math.log1p(bytes)) / most);
    return [`M${(place * slot).toFixed(1)} ${HIGH}v-${high.toFixed(1)}h${BAR}v${high.toFixed(1)}z`];
  });
  return (
    <svg className="spark" viewBox={`0 0 ${WIDE} ${HIGH}`} aria-hidden="true">
      <path d={bars.join('')} fill="currentColor" />
    </svg>
  );
}

function useUsed(task: Task) {
  const attempt = latest(task);
  return useActivity(attempt?.id ?? '')?.usage ?? attempt?.usage;
}

function Turns({ task }: { task: Task }) {
  const usage = useUsed(task);
  return usage && <span className="sep more">{counted(usage.turns, 'turn')}</span>;
}

function Cost({ task }: { task: Task }) {
  const cost = costOf(task, useUsed(task));
  return (
    <>
      {cost !== undefined && <span className="cost">{money(cost, 'cost unknown')}</span>}
      {task.budget_usd && cost && (
        <span
          className={`lim ${near(cost / task.budget_usd) ? 'near' : ''}`}
          style={share(cost / task.budget_usd)}
        />
      )}
    </>
  );
}

function LastLine({ task }: { task: Task }) {
  const activity = useActivity(latest(task)?.id ?? '');
  if (task.checking) {
    return (
      <p className="last">
        <b>Check</b> <Said>{task.checking.command || task.checking.name}</Said>
      </p>
    );
  }
  if (task.interactive) {
    return (
      <p className="last">
        <Said>{lastOnScreen(activity?.text ?? '') || 'in a terminal'}</Said>
      </p>
    );
  }
  if (!activity?.kind) return <p className="last" />;
  return activity.kind === 'tool_call' ? (
    <p className="last">
      <b>{activity.name}</b> <Said>{lineText(activity)}</Said>
    </p>
  ) : (
    <p className="last say">
      <Said>{lineText(activity)}</Said>
    </p>
  );
}
