import type { ComponentProps } from 'react';
import { Button } from '../parts/controls';
import { useLink } from '../shell/link';

const WHY = 'Daemon unreachable';

/** The properties of a button that needs the daemon, while the daemon is unreachable. */
export const useHeld = (): { disabled?: true; title?: string } =>
  useLink().state === 'away' ? { disabled: true, title: WHY } : {};

/** A button that has the daemon do something. */
export const Act = (props: ComponentProps<typeof Button>) => <Button {...props} {...useHeld()} />;
