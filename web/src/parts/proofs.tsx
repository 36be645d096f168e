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
  const found: Proof[] = [];
  const last = latest(task);
  if (task.status === 'cancelled') return [{ state: 'cancelled', text: task.reason ?? 'cancelled' }];
  if (last?.status === 'lost') found.push({ state: 'lost', text: 'nobody saw the end' });
  else if (last?.claimed === 'success') found.push({ state: 'said', text: 'said' });
  else if (last?.claimed === 'failure') found.push({ state: 'bad', text: 'said it failed' });
  found.push(ofChecks(task));
  if (task.merged_at) found.push({ state: 'merged', text: 'merged' });
  else if (isMergeable(task)) found.push({ state: 'todo', text: 'not merged' });
  return found;
}

function ofChecks(task: Task): Proof {
  const failed = task.checks.filter((check) => !check.passed);
  if (failed.length > 0) return { state: 'bad', text: `${failed.length} of ${task.checks.length} failed` };
  const count = task.checks.length;
  if (count > 0 && !areProof(task.checks)) return { state: 'said', text: `${count} of ${count}, not proven` };
  if (count > 0) return { state: 'ok', text: `${count} of ${count}` };
  if (task.status === 'failed' && task.reason) return { state: 'bad', text: task.reason };
  return { state: 'none', text: 'nothing checked' };
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

function ofDelivery(work: Work): Proof[] {
  const told = work.delivery;
  if (told?.mode !== 'pr' || !told.number) return [];
  const state = told.state === 'merged' ? 'merged' : told.ci === 'failed' ? 'bad' : 'todo';
  const ci = isOpen(work) && told.ci && told.ci !== 'none' ? `, CI ${told.ci}` : '';
  return [{ state, text: `pull request ${told.number} ${told.state}${ci}` }];
}

/** How far the claim of a piece of work has been carried, in one line. */
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
  const found: Proof[] = [];
  if (work.status === 'failed') found.push({ state: 'bad', text: work.reason ?? 'failed' });
  else if (work.status === 'cancelled') found.push({ state: 'cancelled', text: work.reason ?? 'cancelled' });
  else if (work.verified) found.push({ state: 'ok', text: 'verified' });
  else found.push({ state: 'none', text: 'nothing checked' });
  if (work.merged_at) found.push({ state: 'merged', text: 'merged' });
  return found;
}
