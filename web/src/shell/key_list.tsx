import { Fragment } from 'react';
import { Dialog } from '../parts/dialog';
import { withCommand } from './keys';

const KEYS: [string, string][] = [
  ['/', `search or jump to; ${withCommand('K')} too`],
  ['c', 'new'],
  ['g n', 'Now'],
  ['g w', 'Work'],
  ['g s', 'Schedules'],
  ['g k', 'Knowledge'],
  ['g u', 'Usage'],
  ['g y', 'System'],
  ['j k', 'next, previous'],
  ['↵', 'open'],
  ['a', 'answer'],
  ['m', 'merge (asks first)'],
  ['r', 'continue or resume'],
  ['x', 'cancel (asks first)'],
  ['p', 'pause'],
  ['[ ]', 'previous, next file of the changes'],
  ['f', 'find in the output, filter in Work'],
  ['G', 'to the end of a conversation or output'],
  ['esc', 'close a window; leave New'],
  ['?', 'all keyboard shortcuts'],
];

export const KeyList = ({ close }: { close: () => void }) => (
  <Dialog title="Keyboard shortcuts" close={close}>
    <div className="keys">
      {KEYS.map(([keys, does]) => (
        <Fragment key={keys}>
          <span>
            {keys.split(' ').map((key) => (
              <kbd key={key}>{key}</kbd>
            ))}
          </span>
          <span>{does}</span>
        </Fragment>
      ))}
    </div>
    <p className="hint mt-3">Turn keyboard shortcuts off in System › Settings.</p>
  </Dialog>
);
