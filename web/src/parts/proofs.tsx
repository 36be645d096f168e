import { isRun, type Task, type Work } from '../api/client';
import { areProof } from '../model/proof';
import { isMergeable, isOpen, latest, type State } from '../model/work';
import { Glyph } from './glyph';
import { Said } from './text';

interface Proof {
  state: State;
  text: string;
  code?: boolean;
}

function ofTask(task: Task): Proof[] {
  const proofs: Proof[] = [];
  const last = latest(task);
  if (task.status === 'cancelled') return [{ state: 'cancelled', text: task.reason ?? 'cancelled' }];
  if (last?.status === 'lost') proofs.push({ state: 'lost', text: 'outcome unknown' });
  else if (last?.claimed === 'success') proofs.push({ state: 'said', text: 'reported success' });
  else if (last?.claimed === 'failure') proofs.push({ state: 'bad', text: 'reported failure' });
  proofs.push(ofChecks(task));
  if (task.merged_at) proofs.push({ state: 'merged', text: 'merged' });
  else if (isMergeable(task)) proofs.push({ state: 'todo', text: 'not merged' });
  return proofs;
}

function ofChecks(task: Task): Proof {
  const failed = task.checks.filter((check) => !check.passed);
  if (failed.length > 0) return { state: 'bad', text: `${failed.length} of ${task.checks.length} failed` };
  const count = task.checks.length;
  if (count > 0 && !areProof(task.checks)) return { state: 'said', text: `${count} of ${count}, not proven` };
  if (count > 0) return { state: 'ok', text: `${count} of ${count}` };
  if (task.status === 'failed' && task.reason) return { state: 'bad', text: task.reason };
  return { state: 'none', text: 'no checks' };
}

/** The number of a pull request, and the way to it at its forge. */
export function PullRequest({ work }: { work: Work }) {
  const { url, number } = work.delivery ?? {};
  if (!url?.startsWith('http') || !number) return null;
  return (
    <a href={url} target="_blank" rel="noreferrer">
      Pull request {number}
    </a>
  );
}

/** The state that the glyph of a pull request shows. */
export function pullRequestState({ state, ci }: { state?: string | null; ci?: string | null }): State {
  if (state === 'merged') return 'merged';
  return ci === 'failed' ? 'bad' : 'todo';
}

function ofDelivery(work: Work): Proof[] {
  const { delivery } = work;
  if (delivery?.mode !== 'pr' || !delivery.number) return [];
  const ci = isOpen(work) && delivery.ci && delivery.ci !== 'none' ? `, CI ${delivery.ci}` : '';
  const text = `pull request ${delivery.number} ${delivery.state}${ci}`;
  return [{ state: pullRequestState(delivery), text }];
}

/** The evidence for work, in one line. */
export function Proofs({ work }: { work: Work }) {
  const proofs = [...(isRun(work) ? ofRun(work) : ofTask(work)), ...ofDelivery(work)];
  return (
    <span className="proofs">
      {proofs.map(({ state, text }) => (
        <span key={text}>
          <Glyph state={state} />
          <Said className="cut">{text}</Said>
        </span>
      ))}
    </span>
  );
}

function ofRun(work: Work): Proof[] {
  const proofs: Proof[] = [];
  if (work.status === 'failed') proofs.push({ state: 'bad', text: work.reason ?? 'failed' });
  else if (work.status === 'cancelled') proofs.push({ state: 'cancelled', text: work.reason ?? 'cancelled' });
  else if (work.verified) proofs.push({ state: 'ok', text: 'verified' });
  else proofs.push({ state: 'none', text: 'no checks' });
  if (work.merged_at) proofs.push({ state: 'merged', text: 'merged' });
  return proofs;
}
