import { Link } from '@tanstack/react-router';
import type { Run, Step } from '../../api/client';
import { counted } from '../../model/format';
import { hasEnded, type State } from '../../model/work';
import { Empty } from '../../parts/controls';
import { Glyph } from '../../parts/glyph';
import { Elapsed, Said } from '../../parts/text';
import { oneLine } from '../task/line_text';
import { afterwards, type Phase, Phases } from './phases';
import { objectIn, phaseOf } from './plan';
import { stepState, taskOf } from './step_facts';
import { within, wordsFor } from './within';

interface Milestone {
  title: string;
  check: string | null;
  evidence: string | null;
}

interface Block {
  code: string;
  phase: string;
  cycle: number;
  reason: string;
  fix: string;
}

interface Facts {
  milestones?: Milestone[];
  blocked?: Block | null;
  worklog?: { task: string; text: string }[];
}

/** The cycle that a run is in; the review behind the last one begins no further one. */
function cycleOf(run: Run): string {
  const most = Number(run.spec.cycles ?? 10);
  return `cycle ${Math.min(Number(run.progress.cycle ?? 0), most)} of ${most}`;
}

const PHASES = ['assess', 'review', 'implement'];

const factsOf = (run: Run): Facts => ({ ...(run.progress as Facts), ...(run.result as Facts | null) });

export function WorkflowPhases({ run }: { run: Run }) {
  const plan = factsOf(run).milestones ?? [];
  const held = plan.filter((one) => one.evidence).length;
  const phases: Phase[] = [
    ['assess', plan.length ? counted(plan.length, 'milestone') : ''],
    ['review', cycleOf(run)],
    [
      'implement',
      `${held} of ${counted(plan.length, 'milestone')} ${held === 1 ? 'holds' : 'hold'}`,
      afterwards(run, held === plan.length),
    ],
  ];
  return <Phases run={run} phases={phases} at={PHASES.indexOf(phaseOf(run))} />;
}

/** The plan with what each milestone was ticked by, and what the phases of every cycle came to. */
export function Workflow({ run, steps }: { run: Run; steps: Step[] }) {
  const facts = factsOf(run);
  const plan = facts.milestones ?? [];
  const phases = steps.filter((step) => step.role && PHASES.includes(step.role));
  const next = plan.find((one) => !one.evidence);
  const stateOf = (one: Milestone): State =>
    one.evidence ? 'ok' : within(run, one === next && phaseOf(run) === 'implement' ? 'run' : 'todo');
  if (phases.length === 0) return <Empty title="No plan yet" />;
  return (
    <>
      {facts.blocked && run.status !== 'waiting' && (
        <div className="note">
          <Glyph state={within(run, 'blocked')} label="blocked" />
          <span>
            Blocked in {facts.blocked.phase} of cycle {facts.blocked.cycle}:{' '}
            <Said>{facts.blocked.reason}</Said>. <Said>{facts.blocked.fix}</Said>
          </span>
        </div>
      )}
      <section className="panel">
        <div className="box">
          <header>
            <h2>Plan</h2>
            <span className="faint">
              {plan.filter((one) => one.evidence).length} of {plan.length} milestones hold
            </span>
            <span className="end faint">
              {cycleOf(run)}
              {hasEnded(run) ? '' : `, ${phaseOf(run)}`}
            </span>
          </header>
        </div>
        <ul className="nest steps">
          {plan.map((one) => (
            <OneMilestone key={one.title} one={one} state={stateOf(one)} />
          ))}
        </ul>
      </section>
      <section className="panel">
        <div className="box">
          <header>
            <h2>Worklog</h2>
            <span className="faint">newest first</span>
          </header>
        </div>
        <ul className="nest steps">
          {phases.toReversed().map((step) => (
            <OnePhase key={step.position} run={run} step={step} text={textOf(step, facts.worklog ?? [])} />
          ))}
        </ul>
      </section>
    </>
  );
}

/** The worklog entry of a phase, or else the answer of its agent. */
function textOf(step: Step, worklog: { task: string; text: string }[]): string {
  const said = taskOf(step)?.text ?? '';
  const review = step.role === 'review' ? objectIn<{ summary?: string }>(said)?.summary : null;
  return worklog.find((entry) => entry.task === step.subject)?.text ?? review ?? said;
}

function OneMilestone({ one, state }: { one: Milestone; state: State }) {
  const words = one.evidence ? 'holds' : wordsFor(state);
  return (
    <li>
      <span className="t">
        <Glyph state={state} label={words} />
        <Said className="cut">{one.title}</Said>
      </span>
      <span className="faint cut desk">
        <Said>{one.evidence ?? (one.check ? `proven by ${one.check}` : 'judged by the reviewer')}</Said>
      </span>
      <span className="desk" />
      <span className="num">{words}</span>
    </li>
  );
}

function OnePhase({ run, step, text }: { run: Run; step: Step; text: string }) {
  const facts = taskOf(step);
  const state = stepState(step, run);
  return (
    <li>
      <span className="t">
        <Glyph state={state} />
        <Link className="cut" to="/tasks/$id/{-$tab}" params={{ id: step.subject ?? '' }}>
          Cycle {step.cycle}, {step.role}
        </Link>
      </span>
      <span className="faint cut desk">
        <Said>{oneLine(text || (facts?.reason ?? ''))}</Said>
      </span>
      <Elapsed className="num" from={step.started_at} to={step.ended_at ?? run.ended_at} />
      <span className="num desk">{facts?.agent ?? wordsFor(state)}</span>
    </li>
  );
}
