import { memo } from 'react';
import { pulseOf, useActivity } from '../../api/activity';
import { type Attempt, isRun, type Run, type Task, type Work } from '../../api/client';
import { useOne, useSteps } from '../../api/queries';
import { counted, lastOnScreen, nameOfPath, percent, secondsBetween, span } from '../../model/format';
import { price, priceOf } from '../../model/price';
import { latest, progressOf, repositoryOf, type State, stateOf } from '../../model/work';
import { Choices, Empty, near, share } from '../../parts/controls';
import { Glyph } from '../../parts/glyph';
import { Icon } from '../../parts/icon';
import { Elapsed, Said, useNow } from '../../parts/text';
import { usePreference } from '../../shell/preferences';
import { partStates } from '../run/roll';
import { lineText } from '../task/line_text';
import { WorkLink } from '../work_link';

export const isAtWork = (work: Work): work is Task => !isRun(work) && work.status === 'running';

const MOST_CARDS = 24;

interface Group {
  run: Run | null;
  tasks: Task[];
}

/** Groups the running tasks by run; a run with one agent forms no group. */
function groupsOf(work: Work[]): Group[] {
  const runs = new Map(work.filter(isRun).map((run) => [run.id, run]));
  const groups = new Map<string, Task[]>();
  for (const task of work.filter(isAtWork).sort((a, b) => a.id.localeCompare(b.id))) {
    const key = task.run_id ?? '';
    groups.set(key, [...(groups.get(key) ?? []), task]);
  }
  const alone: Task[] = [];
  const shared: Group[] = [];
  for (const [id, tasks] of groups) {
    const run = runs.get(id);
    if (run && tasks.length > 1) shared.push({ run, tasks });
    else alone.push(...tasks);
  }
  return alone.length > 0 ? [...shared, { run: null, tasks: alone }] : shared;
}

export function AtWork({ work }: { work: Work[] }) {
  const [chosen, choose] = usePreference('layout', '');
  const groups = groupsOf(work);
  const titles = new Map(work.filter(isRun).map(({ id, title }) => [id, title]));
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
          <p>Work that you start here, from the CLI or on a schedule shows up live.</p>
        </Empty>
      )}
      {groups.map((group) => (
        <div className="group" key={group.run?.id ?? 'alone'}>
          <header>{group.run ? <RunHead run={group.run} /> : <span className="t">Single tasks</span>}</header>
          <div className={layout === 'cards' ? 'cards' : 'cards rows'}>
            {group.tasks.map((task) => (
              <Card
                key={task.id}
                task={task}
                of={group.run ? undefined : titles.get(task.run_id ?? '')}
                pulses={layout === 'cards'}
              />
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
    <Roll run={run} />
    {run.parent_id && <Parent id={run.parent_id} />}
  </>
);

const LOOKS: Partial<Record<State, string>> = { merged: 'ok', ok: 'ok', run: 'go', bad: 'bad', you: 'you' };

/** A small bar for each part of a plan: merged, at work, to come. */
function Roll({ run }: { run: Run }) {
  const states = partStates(run, useSteps(run.id).data ?? []);
  if (states.length === 0) return null;
  const count = (state: State) => states.filter((other) => other === state).length;
  const label = `${count('merged')} of ${counted(states.length, 'part')} merged, ${count('run')} at work`;
  return (
    <span className="roll" role="img" aria-label={label} title={label}>
      {states.map((state, place) => (
        <i key={place} className={LOOKS[state] ?? 'todo'} />
      ))}
    </span>
  );
}

function Parent({ id }: { id: string }) {
  const title = useOne(id).data?.title;
  return (
    title && (
      <span className="faint cut desk">
        in <Said>{title}</Said>
      </span>
    )
  );
}

/** The part of a run that a task does, without the title of the run. */
const partOf = (task: Task, run: string): string =>
  task.title.startsWith(`${run} (`) ? task.title.slice(run.length + 2, -1) : task.title;

interface CardProps {
  task: Task;
  /** The title of the run that it is the only agent of. */
  of: string | undefined;
  pulses: boolean;
}

/** A card; a new line of the agent redraws the changed parts only. */
const Card = memo(({ task, of, pulses }: CardProps) => {
  const attempt = latest(task);
  const warning = attempt?.warnings.at(-1);
  return (
    <WorkLink work={task} className="card">
      <span className="h">
        {task.interactive && attempt ? <Terminal attempt={attempt} /> : <Glyph state={stateOf(task)} />}
        <span className="t cut">
          <Said>{of ?? task.title}</Said>
        </span>
        <span className="faint small cut repo" title={repositoryOf(task)}>
          <Said>{nameOfPath(repositoryOf(task))}</Said>
        </span>
        {attempt && <Elapsed className="el" from={attempt.started_at} />}
      </span>
      <LastLine task={task} />
      <span className="f">
        <span className="cut">
          {of !== undefined && (
            <>
              <Said className="part">{partOf(task, of)}</Said>
              <span className="sep" />
            </>
          )}
          {task.agent}{' '}
          {(attempt?.model ?? task.model) && <span className="model">{attempt?.model ?? task.model}</span>}
          {attempt && attempt.number > 1 && <span className="sep more">attempt {attempt.number}</span>}
          {!warning && <Turns task={task} />}
        </span>
        <Cost task={task} />
        {warning && <Warned task={task} what={warning.what} text={warning.text} />}
        {!warning && attempt && task.interactive && <IdleFor attempt={attempt} />}
        {!warning && attempt && !task.interactive && pulses && <Pulse attempt={attempt.id} />}
      </span>
    </WorkLink>
  );
});

/** A warning in the few words that a card has room for. */
function Warned({ task, what, text }: { task: Task; what: string; text: string }) {
  const usage = useUsed(task);
  const spent = priceOf(task, usage)?.usd ?? 0;
  let short = text;
  if (what === 'budget' && task.budget_usd) short = `${percent(spent, task.budget_usd)} of its budget`;
  else if (what === 'turns' && task.max_turns)
    short = `${percent(usage?.turns ?? 0, task.max_turns)} of its turns`;
  return (
    <span className="warn" title={text}>
      <Icon name="warn" />
      <Said className="cut">{short}</Said>
    </span>
  );
}

const IDLE_S = 60;

/** The seconds without output in a terminal; 0 for less than a minute. */
function useIdle(attempt: Attempt): number {
  const now = useNow();
  const last = useActivity(attempt.id)?.at ?? attempt.started_at;
  const seconds = secondsBetween(last, now);
  return seconds >= IDLE_S ? seconds : 0;
}

const Terminal = ({ attempt }: { attempt: Attempt }) => (
  <Glyph state={useIdle(attempt) > 0 ? 'idle' : 'run'} />
);

function IdleFor({ attempt }: { attempt: Attempt }) {
  const idle = useIdle(attempt);
  return (
    <span className={idle > 0 ? 'warn' : 'end'}>in a terminal{idle > 0 && `, idle for ${span(idle)}`}</span>
  );
}

const [WIDE, HIGH, BAR] = [58, 12, 2.4];

/** The recent amount of output as small bars, the newest on the right. */
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
  const cost = priceOf(task, useUsed(task));
  if (!cost) return null;
  const part = task.budget_usd ? (cost.usd ?? 0) / task.budget_usd : 0;
  return (
    <>
      <span className="cost">
        {cost.usd === null ? 'cost unknown' : price(cost)}
        {near(part) && ` of $${task.budget_usd}`}
      </span>
      {part > 0 && <span className={`lim ${near(part) ? 'near' : ''}`} style={share(part)} />}
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
