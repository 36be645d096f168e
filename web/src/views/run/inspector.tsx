import type { ReactNode } from 'react';
import type { Run, Step } from '../../api/client';
import { usePatterns } from '../../api/queries';
import { clock } from '../../model/format';
import { price } from '../../model/price';
import { hasEnded } from '../../model/work';
import { Meter } from '../../parts/controls';
import { Glyph } from '../../parts/glyph';
import { Said } from '../../parts/text';
import { PullRequestSection } from '../pull_request';
import { Where } from '../where';
import { Facts } from '../work_head';
import { criteriaOf } from './plan';
import { taskOf } from './step_facts';

const number = (value: unknown): number | null => (typeof value === 'number' && value > 0 ? value : null);
const text = (value: unknown): string | null => (typeof value === 'string' && value ? value : null);

/** Limits, score command, prompt and workspace of a run. */
export function RunInspector({ run, steps }: { run: Run; steps: Step[] }) {
  const asked = text(run.spec.prompt) ?? text(run.spec.goal);
  const measure = text(run.spec.eval);
  return (
    <aside className="inspector" aria-label="About this run">
      <Ends run={run} steps={steps} />
      {run.pattern === 'team' && <Criteria run={run} />}
      {measure && (
        <section>
          <h2>Measured by</h2>
          <p className="cmd">{measure}</p>
          <p className="hint">
            {run.spec.direction === 'minimize' ? 'Smaller is better.' : 'Larger is better.'} The last line of
            its output is the score.
          </p>
        </section>
      )}
      {asked && (
        <section>
          <h2>Prompt</h2>
          <p className="break">
            <Said>{asked}</Said>
          </p>
        </section>
      )}
      <PullRequestSection work={run} />
      <Where work={run} />
    </aside>
  );
}

/** The value of a field in the specification, or the default of the pattern. */
function useLimits(run: Run): Record<string, unknown> {
  const schema = usePatterns().data?.find(({ name }) => name === run.pattern)?.spec_schema;
  const known = (schema?.properties ?? {}) as Record<string, { default?: unknown }>;
  const usual = Object.entries(known).map(([name, field]) => [name, field.default]);
  return { ...Object.fromEntries(usual), ...run.spec };
}

function Ends({ run, steps }: { run: Run; steps: Step[] }) {
  const { spent, progress } = run;
  const spec = useLimits(run);
  const iterations = number(spec.max_iterations);
  const cycles = number(spec.cycles);
  const cycle = number(progress.cycle) ?? 0;
  const calls = number(spec.max_agent_calls);
  const budget = number(spec.budget_usd);
  const seconds = number(spec.max_seconds);
  const failures = number(spec.max_failures);
  const at = number(progress.iteration) ?? 0;
  const failed = typeof progress.failures === 'number' ? progress.failures : 0;
  const facts: [string, ReactNode][] = [];
  if (!calls) facts.push(['Calls', spent.agent_calls]);
  if (!seconds) facts.push(['Time', clock(spent.seconds)]);
  const cost = costOf(run, steps);
  if (!budget && spent.agent_calls > 0) facts.push(['Cost', cost]);
  return (
    <section className={hasEnded(run) ? 'over' : ''}>
      <h2>{hasEnded(run) ? 'Usage' : 'Limits'}</h2>
      {iterations && <Meter name="Iterations" used={at} most={iterations} text={`${at} of ${iterations}`} />}
      {cycles && <Meter name="Cycles" used={cycle} most={cycles} text={`${cycle} of ${cycles}`} />}
      {failures && (
        <Meter name="Failures" used={failed} most={failures} text={`${failed} of ${failures} in a row`} />
      )}
      {calls && (
        <Meter name="Calls" used={spent.agent_calls} most={calls} text={`${spent.agent_calls} of ${calls}`} />
      )}
      {budget && (
        <Meter name="Budget" used={spent.cost_usd ?? 0} most={budget} text={`${cost} of $${budget}`} />
      )}
      {seconds && (
        <Meter
          name="Time"
          used={spent.seconds}
          most={seconds}
          text={`${clock(spent.seconds)} of ${clock(seconds)}`}
        />
      )}
      <Facts facts={facts} />
    </section>
  );
}

/** The known costs; at least so much where a part told none. */
function costOf({ spent }: Run, steps: Step[]): string {
  const parts = steps.filter(({ kind, ended_at }) => ended_at && (kind === 'task' || kind === 'run'));
  const silent = parts.filter((step) => taskOf(step)?.cost_usd === null).length;
  return price({ usd: spent.cost_usd, unknown: silent || Number(spent.cost_usd === null) });
}

function Criteria({ run }: { run: Run }) {
  const criteria = criteriaOf(run);
  if (criteria.length === 0) return null;
  const reached = run.status === 'completed';
  return (
    <section>
      <h2>Success criteria</h2>
      <ul className="links">
        {criteria.map((criterion) => (
          <li key={criterion} className="split">
            <Glyph state={reached ? 'said' : 'todo'} />
            <Said>{criterion}</Said>
          </li>
        ))}
      </ul>
    </section>
  );
}
