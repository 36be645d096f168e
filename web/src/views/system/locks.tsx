import { useState } from 'react';
import { api, ask } from '../../api/client';
import { useChange } from '../../api/knowledge';
import { useLocks, useOne } from '../../api/queries';
import type { components } from '../../api/schema';
import { span } from '../../model/format';
import type { State } from '../../model/work';
import { Button, Empty, Loading, Problem } from '../../parts/controls';
import { Dialog } from '../../parts/dialog';
import { Glyph } from '../../parts/glyph';
import { Table } from '../../parts/table';
import { Moment, Said } from '../../parts/text';
import { WorkTo } from '../work_link';

/** Which files are held, by whom, and who waits for them. */
export function Locks() {
  const locks = useLocks();
  if (locks.isPending) return <Loading />;
  if (locks.error) return <Problem error={locks.error} />;
  if (locks.data.length === 0) {
    return (
      <Empty title="No locks">
        <p>
          Agents that share a checkout lock the files that they write. Lock files yourself with{' '}
          <span className="mono">kapelle locks take PATH</span>.
        </p>
      </Empty>
    );
  }
  return (
    <Table columns={['File', 'By', 'Why', { num: 'Since' }, { num: 'Ends in' }, '']}>
      {locks.data.map((lock) => (
        <Row key={`${lock.checkout} ${lock.path} ${lock.owner} ${lock.status}`} lock={lock} />
      ))}
    </Table>
  );
}

/** The glyph of a lock: held, or waiting. */
function holderOf(isHeld: boolean, isMine: boolean): { state: State; label: string } {
  if (!isHeld) return { state: 'blocked', label: 'waiting' };
  return isMine ? { state: 'idle', label: 'held by you' } : { state: 'run', label: 'held' };
}

function Row({ lock }: { lock: Lock }) {
  const [asking, warn] = useState(false);
  const isHeld = lock.status === 'held';
  const release = useChange('locks', () => releaseLock(lock));
  const isMine = lock.task_id === null;
  const holder = holderOf(isHeld, isMine);
  const letGo = () => release.mutate(undefined, { onSettled: () => warn(false) });
  return (
    <tr>
      <td className="full">
        <span className="t name">
          <Glyph state={holder.state} label={holder.label} />
          <Said className="mono">{lock.path}</Said>
        </span>
        <span className="hint block">
          <Said>{lock.checkout}</Said>
        </span>
        <Problem error={release.error} />
      </td>
      <td>{lock.task_id ? <Owner id={lock.task_id} /> : 'you'}</td>
      <td className="dim">
        <Said>{isHeld ? (lock.reason ?? '') : 'waiting'}</Said>
      </td>
      <td className="num faint">
        <Moment at={lock.taken_at} />
      </td>
      <td className="num faint">{isHeld ? span(lock.left_s) : ''}</td>
      <td className="num">
        {isHeld && (
          <Button small disabled={release.isPending} onClick={() => (isMine ? letGo() : warn(true))}>
            Release
          </Button>
        )}
        {asking && (
          <Dialog title="Release this lock?" close={() => warn(false)}>
            <p>
              The agent that holds <Said className="mono">{lock.path}</Said> is not told, and may still write
              it while others do.
            </p>
            <div className="acts">
              <Button look="danger" disabled={release.isPending} onClick={letGo}>
                Release
              </Button>
              <Button look="quiet" onClick={() => warn(false)}>
                Cancel
              </Button>
            </div>
          </Dialog>
        )}
      </td>
    </tr>
  );
}

type Lock = components['schemas']['Lock'];

const releaseLock = ({ path, checkout }: Lock) =>
  ask(api.POST('/api/v1/locks/release', { body: { paths: [path], directory: checkout } }));

const Owner = ({ id }: { id: string }) => (
  <WorkTo id={id}>
    <Said>{useOne(id).data?.title ?? id}</Said>
  </WorkTo>
);
