import { Link } from '@tanstack/react-router';
import type { ReactNode } from 'react';
import type { Attempt, Task } from '../../api/client';
import { isRun } from '../../api/client';
import { useActive, useOne } from '../../api/queries';
import { clock, secondsBetween, short, shortId } from '../../model/format';
import { cachedShare, price, priceOf } from '../../model/price';
import { attemptState, latest, stateOf } from '../../model/work';
import { Meter } from '../../parts/controls';
import { Glyph } from '../../parts/glyph';
import { Icon } from '../../parts/icon';
import { Elapsed, Said, useNow } from '../../parts/text';
import { PullRequestSection } from '../pull_request';
import { Where } from '../where';
import { Facts } from '../work_head';
import { WorkLink } from '../work_link';

export function Inspector({ task }: { task: Task }) {
  const all = task.attempts.flatMap((attempt) => attempt.warnings);
  // A further attempt may warn of the same.
  const warnings = [...new Map(all.map((warning) => [warning.text, warning])).values()];
  return (
    // biome-ignore lint/a11y/noNoninteractiveTabindex: what scrolls must be reached by keys
    <aside className="inspector" aria-label="About this task" tabIndex={0}>
      {warnings.length > 0 && (
        <section>
          <h2>Warnings</h2>
          {warnings.map((warning) => (
            <p key={warning.at + warning.what} className="tag c-you">
              <Icon name="warn" />
              <Said>{warning.text}</Said>
            </p>
          ))}
        </section>
      )}
      {task.attempts.length > 0 && (
        <section>
          <h2>Attempts</h2>
          <div className="attempts">
            {task.attempts.map((attempt) => (
              <WorkLink key={attempt.id} work={task} tab="attempts">
                <Glyph state={attemptState(attempt, task)} />
                <span>Attempt {attempt.number}</span>
                <Elapsed className="faint" from={attempt.started_at} to={attempt.ended_at} />
                <span className="d">
                  <Said>{cameTo(attempt)}</Said>
                </span>
              </WorkLink>
            ))}
          </div>
        </section>
      )}
      <Used task={task} />
      <PullRequestSection work={task} />
      <Where work={task} />
      <Around task={task} />
    </aside>
  );
}

const cameTo = (attempt: Attempt): string =>
  attempt.reason ??
  (attempt.claimed === 'success' ? 'reported success' : (attempt.claimed ?? attempt.status));

function Used({ task }: { task: Task }) {
  const now = useNow();
  const used = task.attempts.map((attempt) => attempt.usage).filter((usage) => usage !== null);
  const last = latest(task);
  const sum = (of: 'input_tokens' | 'output_tokens' | 'cached_tokens' | 'turns') =>
    used.reduce((total, usage) => total + usage[of], 0);
  const cost = priceOf(task);
  const seconds = last ? secondsBetween(last.started_at, last.ended_at ?? now) : 0;
  const facts: [string, ReactNode][] = [];
  const all = task.attempts.reduce(
    (sum, { started_at, ended_at }) => sum + Math.max(0, secondsBetween(started_at, ended_at ?? now)),
    0,
  );
  if (task.timeout_s === null || task.attempts.length > 1) facts.push(['Time', clock(all)]);
  if (task.budget_usd === null && cost !== undefined) facts.push(['Cost', price(cost)]);
  if (used.length > 0) {
    // Attempts that reported turns and no token do not count tokens.
    const isSilent = sum('input_tokens') + sum('output_tokens') === 0 && sum('turns') > 0;
    const cached = cachedShare(sum('cached_tokens'), sum('input_tokens'));
    const input = short(sum('input_tokens'));
    facts.push([
      'Tokens in',
      isSilent ? 'unknown' : [input, cached && `${cached} cached`].filter(Boolean).join(', '),
    ]);
    facts.push(['Tokens out', isSilent ? 'unknown' : short(sum('output_tokens'))]);
  }
  if (task.attempts.length === 0) return null;
  const turns = last?.usage?.turns;
  return (
    <section>
      <h2>Usage {task.attempts.length > 1 && <span className="end">all attempts</span>}</h2>
      {task.budget_usd !== null && (
        <Meter
          name="Cost"
          used={cost?.usd ?? 0}
          most={task.budget_usd}
          text={`${cost ? price(cost) : 'unknown'} of $${task.budget_usd}`}
        />
      )}
      {task.max_turns !== null && turns !== undefined && (
        <Meter name="Turns" used={turns} most={task.max_turns} text={`${turns} of ${task.max_turns}`} />
      )}
      {task.timeout_s !== null && (
        <Meter
          name={task.attempts.length > 1 ? 'This attempt' : 'Time'}
          used={seconds}
          most={task.timeout_s}
          text={`${clock(seconds)} of ${clock(task.timeout_s)}`}
        />
      )}
      <Facts facts={facts} />
    </section>
  );
}

function Around({ task }: { task: Task }) {
  const active = useActive();
  const after = active.work.filter((other) => !isRun(other) && other.depends_on.includes(task.id));
  if (task.depends_on.length + after.length === 0 && !task.continue_from && !task.schedule_id) return null;
  return (
    <section>
      <h2>Related</h2>
      <div className="links">
        {task.depends_on.map((id) => (
          <Neighbour key={id} id={id} as="before" />
        ))}
        {task.continue_from && <Neighbour id={task.continue_from} as="continues" />}
        {after.map((other) => (
          <Neighbour key={other.id} id={other.id} as="after" />
        ))}
        {task.schedule_id && (
          <Link to="/schedules/$id" params={{ id: task.schedule_id }}>
            <Icon name="schedules" />
            <span className="cut">{shortId(task.schedule_id)}</span>
            <span className="end">started it</span>
          </Link>
        )}
      </div>
    </section>
  );
}

function Neighbour({ id, as }: { id: string; as: string }) {
  const work = useOne(id).data;
  if (!work) return null;
  return (
    <WorkLink work={work}>
      <Glyph state={stateOf(work)} />
      <span className="cut">
        <Said>{work.title}</Said>
      </span>
      <span className="end">{as}</span>
    </WorkLink>
  );
}
