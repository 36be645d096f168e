import { useLocks, useOne } from '../../api/queries';
import { span } from '../../model/format';
import { Empty, Loading, Problem } from '../../parts/controls';
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
      <Empty title="Nothing is held">
        <p>
          Agents that share a checkout hold the files they write; you do with{' '}
          <span className="mono">kapelle lock PATH</span>.
        </p>
      </Empty>
    );
  }
  return (
    <Table columns={['File', 'By', 'Why', { num: 'Since' }, { num: 'Ends in' }]}>
      {locks.data.map((lock) => (
        <tr key={`${lock.checkout} ${lock.path} ${lock.owner} ${lock.status}`}>
          <td className="full">
            <span className="t name">
              <Glyph
                state={lock.status === 'held' ? 'run' : 'blocked'}
                label={lock.status === 'held' ? 'held' : 'waits for it'}
              />
              <Said className="mono">{lock.path}</Said>
            </span>
            <span className="hint block">
              <Said>{lock.checkout}</Said>
            </span>
          </td>
          <td>{lock.task_id ? <Owner id={lock.task_id} /> : 'you'}</td>
          <td className="dim">
            <Said>{lock.status === 'waiting' ? 'waits for it' : (lock.reason ?? '')}</Said>
          </td>
          <td className="num faint">
            <Moment at={lock.taken_at} />
          </td>
          <td className="num faint">{lock.status === 'held' ? span(lock.left_s) : ''}</td>
        </tr>
      ))}
    </Table>
  );
}

const Owner = ({ id }: { id: string }) => (
  <WorkTo id={id}>
    <Said>{useOne(id).data?.title ?? id}</Said>
  </WorkTo>
);
