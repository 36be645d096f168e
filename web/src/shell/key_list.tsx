import { Fragment } from 'react';
import { Dialog } from '../parts/dialog';

const KEYS: [string, string][] = [
  ['/', 'search or go to; ⌘K too'],
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
  ['m', 'merge, asks first'],
  ['r', 'continue or resume'],
  ['x', 'cancel, asks first'],
  ['p', 'pause'],
  ['?', 'all keys of this page'],
];

export const KeyList = ({ close }: { close: () => void }) => (
  <Dialog title="Keys" close={close}>
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
  </Dialog>
);
