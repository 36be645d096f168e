import type { Run, Step } from '../../api/client';
import { counted } from '../../model/format';
import { hasEnded } from '../../model/work';
import { Empty } from '../../parts/controls';
import { Glyph, Legend } from '../../parts/glyph';
import { Said } from '../../parts/text';
import { Graph } from '../graph';
import { nodesOf, type Part, partsOf, type Result } from './conductor_plan';
import { afterwards, commandsOf, type Phase, Phases } from './phases';
import { phaseOf } from './plan';
import { meanings } from './within';

const PHASES = ['conduct', 'work', 'verify'];

export function ConductedPhases({ run }: { run: Run }) {
  const plan = partsOf(run);
  const count = (...of: Part['status'][]) => plan.filter(({ status }) => of.includes(status)).length;
  const [merged, failed] = [count('merged'), count('failed', 'conflict')];
  const left = hasEnded(run) ? plan.length - merged - failed : 0;
  const made = [
    `${merged} of ${counted(plan.length, 'part')} merged`,
    ...(failed ? [`${failed} failed`] : []),
    ...(left ? [`${left} not done`] : []),
  ];
  const phases: Phase[] = [
    ['conduct', `iteration ${run.progress.iteration ?? 1}`],
    ['work', plan.length ? made.join(', ') : '', afterwards(run, merged === plan.length)],
    ['verify', commandsOf(run.spec.until).join(', ') || 'a judge'],
  ];
  const at = PHASES.indexOf(phaseOf(run));
  const result = run.result as Result | null;
  // Between iterations: the last phase with a result.
  const lastPhase = result?.checks?.length || result?.verdict ? 2 : 1;
  return <Phases run={run} phases={phases} at={at >= 0 ? at : lastPhase} />;
}

/** The plan of a conductor as it is now, and what became of each part. */
export function Conducted({ run, steps }: { run: Run; steps: Step[] }) {
  const result = run.result as Result | null;
  const plan = partsOf(run);
  if (plan.length === 0) {
    return (
      <Empty title={hasEnded(run) ? 'No plan was made' : 'No plan yet'}>
        <p>The conductor makes the plan first. Its parts appear here.</p>
      </Empty>
    );
  }
  const nodes = nodesOf(run, steps);
  const failed = plan.filter((part) => part.status === 'failed' || part.status === 'conflict');
  const lack = run.progress.lack;
  return (
    <>
      <section className="panel box">
        <header>
          <h2>Plan</h2>
          <span className="faint">current plan</span>
          <Legend of={meanings(nodes)} />
        </header>
        <Graph label="The plan" widest={200} nodes={nodes} />
      </section>
      {failed.map((part) => (
        <div key={part.id} className="note">
          <Glyph state="bad" />
          <span>
            <b>
              <Said>{part.title}</Said>
            </b>{' '}
            <Said>{part.reason ?? part.status}</Said>
          </span>
        </div>
      ))}
      {typeof lack === 'string' && lack && !hasEnded(run) && (
        <div className="note">
          <Glyph state="todo" />
          <span>
            Still lacking: <Said>{lack}</Said>
          </span>
        </div>
      )}
      {result?.checks?.map((check) => (
        <div key={check.name} className="note">
          <Glyph state={check.passed ? 'ok' : 'bad'} />
          <Said className="mono">{check.name}</Said>
        </div>
      ))}
      {result?.verdict && (
        <div className="note">
          <Glyph state={result.verdict.reached ? 'ok' : 'bad'} />
          <span>
            The judge: <Said>{result.verdict.reason}</Said>
          </span>
        </div>
      )}
    </>
  );
}
