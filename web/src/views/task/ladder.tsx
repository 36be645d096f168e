import type { ReactNode } from 'react';
import type { Task } from '../../api/client';
import { useDiff, useMergePreview } from '../../api/queries';
import { counted, shortCommit } from '../../model/format';
import { areProof, blindLine } from '../../model/proof';
import { canMerge, hasEnded, latest, obstacle, type State } from '../../model/work';
import { Glyph } from '../../parts/glyph';
import { PullRequest, pullRequestState } from '../../parts/proofs';
import { Line } from '../../parts/prose';
import { Moment, Said } from '../../parts/text';
import { countLines, PlusMinus } from '../patch';
import { nameOf } from './checks';
import { oneLine } from './line_text';

/** The evidence for a task in four steps: reported, changed, checked, merged. */
export function Ladder({ task }: { task: Task }) {
  return (
    <ol className="ladder panel four">
      <Claim task={task} />
      <Changed task={task} />
      <Checked task={task} />
      <Merged task={task} />
    </ol>
  );
}

const Rung = (props: { state: State; name: string; value: ReactNode; detail?: ReactNode }) => (
  <li>
    <div className="k">
      <Glyph state={props.state} />
      {props.name}
    </div>
    <div className="v">{props.value}</div>
    {props.detail && <div className="d">{props.detail}</div>}
  </li>
);

const faint = (text: string) => <span className="faint">{text}</span>;

function Claim({ task }: { task: Task }) {
  const last = latest(task);
  if (last?.status === 'lost') return <Rung state="lost" name="Reported" value="outcome unknown" />;
  if (!last?.claimed) {
    const over = hasEnded(task);
    return (
      <Rung state={over ? 'none' : 'todo'} name="Reported" value={faint(over ? 'nothing' : 'nothing yet')} />
    );
  }
  const said = task.result ? (
    <q>
      <Line>{oneLine(task.result).slice(0, 140)}</Line>
    </q>
  ) : (
    'done'
  );
  return <Rung state={last.claimed === 'success' ? 'said' : 'bad'} name="Reported" value={said} />;
}

function Changed({ task }: { task: Task }) {
  const { data: diff, isPending } = useDiff(task.id);
  const { commit } = task.workspace;
  if (isPending) return <Rung state="todo" name="Changed" value={faint('…')} />;
  if (!diff) return <Rung state="none" name="Changed" value={faint('unknown')} />;
  if (diff.files.length === 0) {
    const over = hasEnded(task);
    return (
      <Rung state={over ? 'none' : 'todo'} name="Changed" value={faint(over ? 'nothing' : 'nothing yet')} />
    );
  }
  return (
    <Rung
      state={task.status === 'running' ? 'run' : 'ok'}
      name="Changed"
      value={
        <>
          {counted(diff.files.length, 'file')} <PlusMinus count={countLines(diff.patch)} />
        </>
      }
      detail={commit ? `at ${shortCommit(commit)}` : 'not committed'}
    />
  );
}

function Checked({ task }: { task: Task }) {
  const failed = task.checks.filter((check) => !check.passed);
  const count = task.checks.length;
  if (task.checking) {
    return <Rung state="run" name="Checked" value="running" detail={<Said>{task.checking.name}</Said>} />;
  }
  if (count === 0 && !hasEnded(task)) {
    const { check_specs: specs } = task;
    if (specs.length === 0) return <Rung state="none" name="Checked" value={faint('no checks')} />;
    return (
      <Rung
        state="todo"
        name="Checked"
        value={`${counted(specs.length, 'check')} pending`}
        detail={
          <span className="cut block">
            <Said className="mono">{specs.map(nameOf).join(', ')}</Said>
          </span>
        }
      />
    );
  }
  if (count === 0) return <Rung state="none" name="Checked" value={faint('no checks')} />;
  const first = failed[0];
  if (first) {
    const exit = first.exit_code === null ? '' : `, exit ${first.exit_code}`;
    return (
      <Rung
        state="bad"
        name="Checked"
        value={<span className="c-bad">{`${failed.length} of ${count} failed`}</span>}
        detail={
          <span className="cut block">
            <code>{first.name}</code>
            {exit}
          </span>
        }
      />
    );
  }
  const blind = blindLine(task.checks);
  const doubted = task.checks.find(
    (check) => check.passes_only_with?.length || check.changed_meanwhile?.length,
  );
  const commit = task.checks.at(-1)?.commit;
  return (
    <Rung
      state={areProof(task.checks) ? 'ok' : 'said'}
      name="Checked"
      value={`${count} of ${count} passed`}
      detail={doubted ? <Said>{doubted.proof ?? ''}</Said> : blind || (commit && `on ${shortCommit(commit)}`)}
    />
  );
}

function Merged({ task }: { task: Task }) {
  const preview = useMergePreview(task.id, canMerge(task)).data;
  if (task.merged_at) {
    return (
      <Rung
        state="merged"
        name="Merged"
        value={`into ${task.workspace.base}`}
        detail={<Moment at={task.merged_at} />}
      />
    );
  }
  if (task.delivery?.number) {
    const { state, ci } = task.delivery;
    return (
      <Rung
        state={pullRequestState(task.delivery)}
        name="Merged"
        value={<PullRequest work={task} />}
        detail={[state, ci && ci !== 'none' ? `CI ${ci}` : ''].filter(Boolean).join(', ')}
      />
    );
  }
  if (task.merge_refused) {
    return <Rung state="bad" name="Merged" value="refused" detail={<Said>{task.merge_refused.name}</Said>} />;
  }
  if (!task.workspace.branch) return <Rung state="none" name="Merged" value={faint('worked in place')} />;
  const detail =
    preview &&
    (obstacle(preview) ?? `merges cleanly into ${preview.base} · ${counted(preview.ahead, 'commit')} ahead`);
  return <Rung state="todo" name="Merged" value={faint('not yet')} detail={detail} />;
}
