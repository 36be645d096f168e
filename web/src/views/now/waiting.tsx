import { Link } from '@tanstack/react-router';
import { type Agent, isRun, type Task, type Work } from '../../api/client';
import { useAgents, useAgentTest } from '../../api/queries';
import { counted, grouped } from '../../model/format';
import { named, stateOf } from '../../model/work';
import { Problem } from '../../parts/controls';
import { Glyph } from '../../parts/glyph';
import { Moment, Said } from '../../parts/text';
import { Act } from '../act';
import { WorkLink } from '../work_link';

const MOST = 50;

interface Props {
  work: Work[];
  all: Work[];
  /** The amount of open work that is not in these lists. */
  unlisted: number;
}

/** Work that starts or continues by itself, with the reason for the wait; one row per rate-limited account. */
export function Waiting({ work, all, unlisted }: Props) {
  const agents = useAgents().data ?? [];
  const titles = new Map(all.map((item) => [item.id, item.title]));
  const limited = new Map<string, Task[]>();
  const others: Work[] = [];
  for (const item of work) {
    if (isRun(item) || item.waiting_for !== 'rate_limit') others.push(item);
    else limited.set(item.agent, [...(limited.get(item.agent) ?? []), item]);
  }
  const more = unlisted + Math.max(0, others.length - MOST);
  return (
    <section className="section bleed" aria-labelledby="h-wait">
      <header>
        <h2 id="h-wait">Waiting</h2>
        <span className="faint">{grouped(work.length + unlisted)} on limits and other work</span>
      </header>
      <ul className="waits panel">
        {[...limited].map(([name, tasks]) => (
          <Limited key={name} agent={agents.find((one) => one.name === name)} name={name} tasks={tasks} />
        ))}
        {others.slice(0, MOST).map((item) => (
          <li key={item.id}>
            <Glyph state={stateOf(item)} />
            <WorkLink work={item} className="cut">
              <Said>{item.title}</Said>
            </WorkLink>
            <span className="why faint cut">
              <Said>{whyOf(item, titles)}</Said>
            </span>
            <span className="faint small">
              {!isRun(item) && (item.not_before ? <Moment at={item.not_before} /> : item.priority)}
            </span>
          </li>
        ))}
      </ul>
      {more > 0 && (
        <Link className="btn quiet sm" to="/work" search={{ q: 'state:queued' }}>
          {grouped(more)} more in Work
        </Link>
      )}
    </section>
  );
}

function whyOf(item: Work, titles: Map<string, string>): string {
  if (item.reason) return named(item.reason, (id) => titles.get(id));
  if (isRun(item)) return 'starts when there is capacity';
  const before = item.depends_on.map((id) => titles.get(id)).filter((title) => title !== undefined);
  return before.length > 0 ? `after ${before.join(', ')}` : 'starts when a slot is free';
}

/** All tasks that wait for the limit of one account, with a way to test it at once. */
function Limited({ agent, name, tasks }: { agent: Agent | undefined; name: string; tasks: Task[] }) {
  const test = useAgentTest(name);
  const first = tasks[0];
  const until = agent?.paused_until ?? first?.not_before;
  const result = test.data;
  return (
    <li className="of-account">
      <Glyph state="limit" />
      <span className="cut">
        {tasks.length === 1 && first ? (
          <WorkLink work={first} className="cut">
            <Said>{first.title}</Said>
          </WorkLink>
        ) : (
          <Link to="/work" search={{ q: `state:rate_limited agent:${name}` }}>
            {counted(tasks.length, 'task')}
          </Link>
        )}
      </span>
      <span className="why faint cut">
        {name} is rate-limited{until && ' until '}
        {until && <Moment at={until} />}
      </span>
      <Act small look="quiet" disabled={test.isPending} onClick={() => test.mutate()}>
        {test.isPending ? 'Testing…' : 'Test now'}
      </Act>
      {result && !result.usable && (
        <span className="c-bad small whole">
          <Said>{result.problem ?? 'No answer.'}</Said>
        </span>
      )}
      <Problem error={test.error} />
    </li>
  );
}
